"""All at once, or one by one: which it is, and that nobody is misled about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.gradients import per_sample_batches
from tests.unit.gradients.sample_loop import loop, smooth

D = torch.float64
X = torch.randn(5, 3, dtype=D, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def nothing_is_said_yet() -> None:
    """Warnings are given once per process."""
    per_sample_batches._warn_once.cache_clear()


class Undecided(nn.Module):
    """Control flow that follows the data."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Embedding(4, 2, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        """One of two layers."""
        if x[0, 0].item() > 0:
            return self.a(x)  # type: ignore[no-any-return]
        return self.b(torch.tensor([1, 1])).sum(0, keepdim=True)  # type: ignore[no-any-return]


class Hooked(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        """With a hook for the gradient of one sample."""
        y = super().forward(x)
        y.register_hook(torch.neg)
        return y


class Recurrent(nn.GRU):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """The last states of sequences of one step."""
        state: Tensor = super().forward(x[:, None])[1]
        return state[0]


class Packing(nn.GRU):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        packed = nn.utils.rnn.pack_padded_sequence(x[:, None], torch.ones(len(x)), batch_first=True)
        state: Tensor = super().forward(packed)[1]
        return state[0]


def hooked(add: Callable[[nn.Sequential], Any]) -> nn.Module:
    """With a hook for the gradient of one sample, which is not linear."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    add(model)
    return model


def small(gradient: Tensor) -> Tensor:
    return gradient.clamp(-0.01, 0.01)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Undecided(), r"calling \.item\(\) on a Tensor or .* control flow"),
        (Hooked(3, 2), r"Tensor\.register_hook is meant for the gradient of one sample"),
        (Recurrent(3, 2, batch_first=True), r"recurrent layers"),
        (Packing(3, 2, batch_first=True), r"packs its sequences, which have different lengths"),
        (
            hooked(lambda m: m[1].register_full_backward_hook(lambda _, g, h: (small(g[0]),))),
            r"1 \(Tanh\) has a backward hook",
        ),
        (
            hooked(lambda m: m[1].register_full_backward_pre_hook(lambda _, g: (small(g[0]),))),
            r"1 \(Tanh\) has a backward hook",
        ),
        (hooked(lambda m: m[0].weight.register_hook(small)), r"the parameter 0\.weight has a backward hook"),
    ],
)
def test_a_model_is_warned_of_once_in_words(model: nn.Module, reason: str) -> None:
    model.double()
    expected = loop(model, smooth, X)
    with pytest.warns(UserWarning, match="loop") as record:
        found = mg.per_sample_grad(model, smooth, X, chunk_size=2)
    mg.per_sample_grad_norms(model, smooth, X)  # no second warning: they are errors here
    assert len(record) == 1
    assert re.search(
        rf"slow loop over the samples: .*{reason}.*\. method='loop' silences", str(record[0].message)
    )
    assert record[0].filename == __file__
    for name, gradient in found.items():
        torch.testing.assert_close(gradient.to_dense(), expected[name])
    per_sample_batches._warn_once.cache_clear()
    mg.per_sample_grad(model, smooth, X, method="loop")
    with pytest.raises(RuntimeError):
        mg.per_sample_grad(model, smooth, X, method="batched")


def test_a_loss_that_reads_parameters_is_warned_of() -> None:
    model = nn.Linear(3, 2, dtype=D)
    expected = loop(model, lambda y: smooth(y) + model.weight.square().sum(), X)
    with pytest.warns(UserWarning, match="a parameter is used through a reference outside of the module"):
        found = mg.per_sample_grad(model, lambda y: smooth(y) + model.weight.square().sum(), X)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("method", ["batched", "loop", "auto"])
def test_an_error_of_the_model_leaves_no_trace(method: Any) -> None:
    class Failing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1  # type: ignore[has-type, unused-ignore]
            raise KeyError("inside")

    model = Failing(3, 2, dtype=D)
    model.register_buffer("calls", torch.zeros(()))
    with pytest.raises(KeyError, match="inside"):
        mg.per_sample_grad(model, smooth, X, method=method)
    assert torch._C._functorch.maybe_current_level() is None
    assert model.calls == 0


def test_rows_that_an_optimizer_owes_a_step_are_up_to_date() -> None:
    table = mg.nn.Embedding(6, 2)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(4, 1))
    optimizer = mg.optim.SGD(table.parameters(), lr=1.0, weight_decay=0.5, unspecified="zero")
    (table(torch.tensor([0])) * 0).sum().backward()
    optimizer.step()
    ids = torch.tensor([[1, 2], [3, 4]])
    found = mg.per_sample_grad(model, smooth, ids)
    table.flush()
    for name, gradient in loop(model, smooth, ids).items():
        torch.testing.assert_close(found[name].to_dense(), gradient)
