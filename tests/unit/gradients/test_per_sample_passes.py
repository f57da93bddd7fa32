"""All at once, or one by one: which it is, and that nobody is misled about it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.gradients import per_sample_batches
from tests.unit.gradients.sample_loop import loop, smooth

D = torch.float64


@pytest.fixture(autouse=True)
def nothing_is_said_yet() -> None:
    """Warnings are given once per process."""
    per_sample_batches._warn_once.cache_clear()


X = torch.randn(5, 3, dtype=D, generator=torch.Generator().manual_seed(0))


class Undecided(nn.Module):
    """Control flow that follows the data."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2, dtype=D), nn.Embedding(4, 2, sparse=True, dtype=D)

    def forward(self, x: Tensor) -> Tensor:
        """One of two layers."""
        if x[0, 0].item() > 0:
            return self.a(x)  # type: ignore[no-any-return]
        return self.b(torch.tensor([1, 1])).sum(0, keepdim=True)  # type: ignore[no-any-return]


class Hooked(nn.Linear):
    """A reason of our own words."""

    def forward(self, x: Tensor) -> Tensor:
        """With a hook for the gradient of one sample."""
        y = super().forward(x)
        y.register_hook(torch.neg)
        return y


class Selecting(nn.Linear):
    """A size that depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        """The output of the positive inputs."""
        return super().forward(torch.zeros_like(x)) * x[x > 0].sum()


class Packing(nn.GRU):
    """Sequences of the lengths that stand in their first column."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """The last state."""
        lengths = x[:, 0, 0].long().clamp(1, 2)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        state: Tensor = super().forward(packed)[1]
        return state[0]


@pytest.mark.parametrize(
    ("model", "x", "reason"),
    [
        (Undecided(), X, r"calling \.item\(\) on a Tensor or .* control flow"),
        (Selecting(3, 2, dtype=D), X, r"dynamic shape"),
        (Hooked(3, 2, dtype=D), X, r"Tensor\.register_hook is meant for the gradient of one sample"),
        (
            Packing(3, 2, dtype=D),
            X[:4].reshape(2, 2, 3),
            r"packs its sequences, which have different lengths",
        ),
    ],
    ids=["item", "size", "hook", "packed"],
)
def test_a_model_is_warned_of_once_in_words(model: nn.Module, x: Tensor, reason: str) -> None:
    expected = loop(model, smooth, x)

    def steps() -> Any:
        for _ in range(3):
            mg.per_sample_grad_norms(model, smooth, x, chunk_size=2)
        return mg.per_sample_grad(model, smooth, x)

    with pytest.warns(UserWarning, match="loop") as record:
        found = steps()
    assert len(record) == 1
    assert re.search(
        rf"slow loop over the samples: .*{reason}.*\. method='loop' silences", str(record[0].message)
    )
    assert record[0].filename == __file__
    for name, gradient in found.items():
        torch.testing.assert_close(gradient.to_dense(), expected[name])
    mg.per_sample_grad(model, smooth, x, method="loop")  # no warning: they are errors here
    with pytest.raises(RuntimeError):
        mg.per_sample_grad(model, smooth, x, method="batched")


def test_the_loop_writes_to_no_buffer_and_each_sample_sees_the_same_ones() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2, dtype=D)
            self.register_buffer("calls", torch.zeros((), dtype=D))
            self.fails = False

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.fails:
                raise ArithmeticError("enough")
            return self.inner(x) * self.calls  # type: ignore[no-any-return]

    model = Counting()
    expected = loop(model.inner, smooth, X)
    for name, gradient in mg.per_sample_grad(model, smooth, X, method="loop").items():
        torch.testing.assert_close(gradient, expected[name.removeprefix("inner.")])
    model.fails = True
    with pytest.raises(ArithmeticError, match="enough"):
        mg.per_sample_grad(model, smooth, X, method="loop")
    assert model.calls == 0


def test_an_error_of_the_model_leaves_no_transform_behind() -> None:
    class Failing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("inside")

    for method in ("batched", "loop", "auto"):
        with pytest.raises(KeyError, match="inside"):
            mg.per_sample_grad(Failing(3, 2, dtype=D), smooth, X, method=method)  # type: ignore[arg-type]
        assert torch._C._functorch.maybe_current_level() is None


def test_rows_that_an_optimizer_owes_a_step_are_up_to_date() -> None:
    torch.manual_seed(0)
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


HOOKS: dict[str, Any] = {
    r"1 \(Tanh\) has a backward hook": lambda m: m[1].register_full_backward_hook(lambda _, g, h: (-g[0],)),
    r"1 \(Tanh\) has a backward hook ": lambda m: m[1].register_full_backward_pre_hook(lambda _, g: (-g[0],)),
    r"the parameter 0\.weight has a backward hook": lambda m: m[0].weight.register_hook(
        lambda g: g.clamp(-0.01, 0.01)
    ),
}


@pytest.mark.parametrize("words", HOOKS)
def test_backward_hooks_see_the_gradient_of_each_sample(words: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    handle = HOOKS[words](model)
    expected = loop(model, smooth, X)
    with pytest.raises(RuntimeError, match=words.strip()):
        mg.per_sample_grad(model, smooth, X, method="batched")
    with pytest.warns(UserWarning, match=words.strip()):
        found = mg.per_sample_grad(model, smooth, X)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])
    handle.remove()
    mg.per_sample_grad(model, smooth, X)  # no warning
