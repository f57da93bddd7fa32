"""find_coupling names the modules, and leaves everything as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg


class Residual(nn.Module):
    def __init__(self, inner: nn.Module, centred: bool = False) -> None:
        super().__init__()
        self.inner, self.centred = inner, centred

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.inner(x)
        return y - y.mean(0) if self.centred else y


def test_names_in_the_order_of_calls() -> None:
    model = nn.Sequential(
        nn.Linear(4, 6),
        Residual(nn.Sequential(nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, 6))),
        Residual(nn.LayerNorm(6), centred=True),
        nn.Dropout(0.5),
        nn.Flatten(),
    )
    x = torch.randn(5, 4)
    assert list(mg.find_coupling(model, x)) == ["1.inner.0", "2"]
    assert mg.find_coupling(model, x)["1.inner.0"] is model[1].inner[0]
    assert list(mg.find_coupling(model.eval(), x)) == ["2"]
    model[2].centred = False
    assert mg.find_coupling(model, x) == {}
    assert list(mg.find_coupling(Residual(nn.Linear(4, 4), centred=True), x)) == [""]


def test_everything_is_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    assert list(mg.find_coupling(model, torch.randn(5, 4))) == ["1"]
    random_after = torch.get_rng_state()
    assert not torch.equal(random, random_after)  # randn of this test
    mg.find_coupling(model, torch.ones(5, 4))
    assert torch.equal(random_after, torch.get_rng_state())
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])
    assert all(p.grad is None for p in model.parameters())
    assert not model[0]._forward_hooks
    assert not model[0]._forward_pre_hooks


def test_hooks_are_removed_when_the_model_fails() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    with pytest.raises(RuntimeError):
        mg.find_coupling(model, torch.randn(5, 3))
    assert not model[0]._forward_pre_hooks
    assert list(mg.find_coupling(model, torch.randn(5, 4))) == ["1"]


class Translator(nn.Module):
    """Time first, tables, attention, and a batch flattened into rows."""

    def __init__(self, over_samples: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.read = nn.LSTM(8, 8)
        self.attend = nn.MultiheadAttention(8, 2)
        self.norm = nn.BatchNorm1d(8) if over_samples else nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)

    def forward(self, words: Tensor, scale: float = 1.0) -> Tensor:
        x, _ = self.read(self.table(words).transpose(0, 1))
        x, _ = self.attend(x, x, x)
        x = x.transpose(0, 1)
        rows = self.norm(x.reshape(-1, 8))
        return self.last(rows).reshape(len(words), -1, 3).sum(1) * scale


@pytest.mark.parametrize("over_samples", [False, True])
def test_sequences(over_samples: bool) -> None:
    model, words = Translator(over_samples), torch.randint(11, (5, 7))
    expected = ["norm"] if over_samples else []
    assert list(mg.find_coupling(model, words)) == expected
    assert list(mg.find_coupling(model, {"words": words, "scale": 2.0})) == expected
    assert list(mg.find_coupling(model, (words, 2.0))) == expected


class Contrastive(nn.Module):
    """Its outputs hide in an object."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), Hidden()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).what.sum(1)


class Hidden(nn.Module):
    def forward(self, x: Tensor) -> Any:
        class Result:
            what = x @ x.t()

        return Result()


def test_objects_that_cannot_be_looked_into() -> None:
    assert list(mg.find_coupling(Contrastive(), torch.randn(5, 4))) == [""]


def test_masked_tensors() -> None:
    class Centred(nn.Module):
        def forward(self, x: Any) -> Any:
            return x - x.mean(0)

    x = mg.masked(
        torch.tensor([[1.0, float("nan")], [2.0, 3.0], [4.0, 5.0]]),
        torch.tensor([[1, 0], [1, 1], [1, 1]]).bool(),
    )
    assert list(mg.find_coupling(nn.Sequential(nn.Identity(), Centred()), x)) == ["1"]
    assert mg.find_coupling(nn.Sequential(nn.Identity(), nn.Tanh()), x) == {}


def test_arguments() -> None:
    with pytest.raises(TypeError, match="batch must be a tensor"):
        mg.find_coupling(nn.Linear(2, 2), (3,))
    with pytest.raises(ValueError, match="at least two samples"):
        mg.find_coupling(nn.Linear(2, 2), torch.ones(1, 2))
