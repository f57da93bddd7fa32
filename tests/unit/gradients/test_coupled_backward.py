"""Losses of all samples together, part by part, against one pass over the whole batch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.unit.gradients.test_accumulation import check, dense

GARBAGE = (float("nan"), float("inf"), float("-inf"), 1e38)
EXACT = {"rtol": 1e-5, "atol": 1e-6}


class Towers(nn.Module):
    """Two embeddings of each sample; a temperature that only the loss uses."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(11, 6, sparse=True)
        self.left, self.right = (
            nn.Sequential(nn.Linear(6, 8), nn.Dropout(dropout), nn.Tanh(), nn.Linear(8, 4)) for _ in range(2)
        )
        self.temperature = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, words: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        x = self.table(words)
        return {"left": self.left(x).mean(1), "right": self.right(x).mean(1)}


WORDS = torch.arange(27).view(9, 3) * 7 % 11
TARGETS = {
    "times": torch.tensor([3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, 5.0, 3.5]),
    "events": torch.tensor([True, True, False, True, True, False, True, True, True]),
}


def contrastive(net: Towers, y: dict[str, Tensor], at: dict[str, Tensor]) -> Tensor:
    scores = F.normalize(y["left"], dim=1) @ F.normalize(y["right"], dim=1).T / net.temperature
    target = torch.arange(len(scores))
    return (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2


def cox(net: Towers, y: dict[str, Tensor], at: dict[str, Tensor]) -> Tensor:
    order = at["times"].argsort(descending=True)
    risk, events = y["left"][:, 0][order], at["events"][order]
    return (risk.logcumsumexp(0) - risk)[events].mean()


LOSSES: dict[str, Callable[[Towers, dict[str, Tensor], dict[str, Tensor]], Tensor]] = {
    f.__name__: f for f in (contrastive, cox)
}


def cut(sizes: list[int], at: int = 0) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Parts of these sizes, and their targets."""
    ends = [*itertools.accumulate(sizes, initial=at)]
    parts = [slice(*some) for some in itertools.pairwise(ends)]
    return [WORDS[rows] for rows in parts], [{k: v[rows] for k, v in TARGETS.items()} for rows in parts]


def whole(name: str) -> tuple[Tensor, dict[str, Tensor | None]]:
    net = Towers()
    loss = LOSSES[name](net, net(WORDS), TARGETS)
    loss.backward()
    return loss.detach(), dense(net)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("sizes", "dropout"), [([9], 0.0), ([1] * 9, 0.0), ([4, 1, 4], 0.5)])
def test_any_split_is_the_whole_batch(name: str, sizes: list[int], dropout: float) -> None:
    """Both passes draw the same random numbers, and what follows draws what would follow one pass."""
    parts, known = cut(sizes)
    oracle, net = Towers(dropout), Towers(dropout)
    torch.manual_seed(1)
    outputs = [oracle(part) for part in (parts if dropout else [WORDS])]
    expected = LOSSES[name](oracle, {k: torch.cat([y[k] for y in outputs]) for k in outputs[0]}, TARGETS)
    expected.backward()
    drawn = torch.rand(3)
    torch.manual_seed(1)
    loss = mg.coupled_backward(net, parts, lambda y, at: LOSSES[name](net, y, at), targets=known)
    assert torch.equal(torch.rand(3), drawn)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, expected.detach(), **EXACT)
    check(dense(net), dense(oracle), **EXACT)
    assert net.table.weight.grad.is_sparse
    assert net.calls == len(sizes)  # buffers as after one pass


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Any, y: Any = 1) -> Any:
        return x * y * self.w, "a note"


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_masked_outputs(layout: torch.layout) -> None:
    """A product of two means, over what is specified; garbage lies under the mask."""
    lengths = torch.tensor([3, 1, 2, 3, 1])
    known = torch.arange(3) < lengths[:, None]
    x = torch.where(known, torch.arange(15.0).view(5, 3) / 7, torch.tensor(GARBAGE * 4)[:15].view(5, 3))
    net = Product()
    kept = x[known] * net.w
    oracle = kept.mean() * torch.tanh(kept).mean()
    (wanted,) = torch.autograd.grad(oracle, net.w)
    parts = [mg.from_lengths(x[r], lengths[r], layout=layout) for r in ([0, 1], [2], [3, 4])]
    loss = mg.coupled_backward(net, parts, lambda y: y[0].mean() * torch.tanh(y[0]).mean())
    torch.testing.assert_close(loss, oracle.detach())
    torch.testing.assert_close(net.w.grad, wanted)


def test_passes_that_differ_by_rounding_are_the_same() -> None:
    class Rounded(nn.Linear):
        noise = 0.0

        def forward(self, x: Tensor) -> Tensor:
            self.noise += 1e-7
            return super().forward(x) * (1 + self.noise)

    assert mg.coupled_backward(Rounded(2, 1), torch.ones(4, 2).split(2), torch.sum).isfinite()


def test_arguments_of_calls() -> None:
    net = Product()
    parts: list[Any] = [(torch.ones(1), torch.ones(1)), {"x": torch.ones(1), "y": 3 * torch.ones(1)}]
    loss = mg.coupled_backward(net, iter(parts), lambda y: y[0].prod())
    assert (loss.item(), net.w.grad.item()) == (12.0, 12.0)


class Odd(nn.Linear):
    """Models that cannot be computed part by part."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__(2, 1)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(super().forward(x))


X = torch.ones(4, 2)
HALVES = X.split(2)
NORMED = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
RANDOM = Odd(lambda y: y * random.random())
CHANGING = Odd(lambda y: [y] * len(y))


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "words"),
    [
        ((len, HALVES, torch.sum), {}, TypeError, "must be a torch.nn.Module"),
        ((nn.Linear(2, 1), [], torch.sum), {}, ValueError, "at least one, on every rank"),
        ((nn.Linear(2, 1), HALVES, torch.sum), {"targets": [X]}, ValueError, "2, found 1"),
        ((nn.Linear(2, 1), HALVES, lambda y: y), {}, TypeError, r"Tensor of shape \(4, 1\); return its mean or sum"),
        ((nn.Linear(2, 1), HALVES, lambda y: 1.0), {}, TypeError, "found a float"),
        ((nn.Linear(2, 1), HALVES, lambda y: y.sum().detach()), {}, ValueError, r"without detach\(\) and item"),
        ((NORMED, HALVES, torch.sum), {}, ValueError, r"1 is a BatchNorm1d in training.*call \.eval\(\)"),
        ((RANDOM, HALVES, torch.sum), {}, RuntimeError, "different outputs in the second"),
        ((Odd(torch.sum), HALVES, torch.sum), {}, ValueError, r"shape \(\), without a dimension of samples; omit it"),
        ((CHANGING, X.split([1, 3]), torch.sum), {}, ValueError, "part 1 has the structure"),
    ],
)  # fmt: skip
def test_refused_calls_leave_no_gradient(
    arguments: Any, options: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        mg.coupled_backward(*arguments, **options)
    if isinstance(arguments[0], nn.Module):
        assert all(p.grad is None for p in arguments[0].parameters())


def test_gradients_from_before_and_no_grad_are_refused() -> None:
    net = nn.Linear(2, 1)
    net.weight.grad = torch.ones(1, 2)
    with pytest.raises(RuntimeError, match=r"\.grad from before"):
        mg.coupled_backward(net, HALVES, torch.sum)
    assert net.weight.grad.tolist() == [[1.0, 1.0]]
    net.weight.grad = None
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"inside torch\.no_grad\(\); call it outside"):
        mg.coupled_backward(net, HALVES, torch.sum)
