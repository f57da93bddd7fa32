"""Cross entropy: deleted classes, deleted samples, and what PyTorch knows besides."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, gradient, leaf, nan, on, poisoned

LOGITS = [[0.5, None, -1.0, 2.0], [None, 0.3, 0.7, None], [1.0, 2.0, 3.0, 4.0], [None, None, None, None]]
LABELS = torch.tensor([3, 1, 0, 2])


def test_an_unspecified_label_need_not_name_a_class() -> None:
    x = leaf([nan, 1.0], [1.0, 1.0])  # nor is its sample looked at
    labels = mg.masked(torch.tensor([10**9, 0]), on(0, 1))
    loss = F.cross_entropy(x, labels)
    assert_entries(loss, math.log(2))
    assert_entries(gradient(loss, x), [[0.0, 0.0], [-0.5, 0.5]])


def test_a_specified_label_must_name_a_class() -> None:
    x = mg.masked(torch.randn(2, 3), on([1, 1, 0], [1, 1, 0]))
    large, labels = (
        mg.masked(torch.randn(6000, 3)),
        torch.zeros(6000).long(),
    )  # enough for the compiled bodies
    labels[17] = 3
    for scores, given in ((x, torch.tensor([0, 3])), (large, labels)):
        with pytest.raises(IndexError, match="out of bounds"):
            F.cross_entropy(scores, given)
    with pytest.raises(ValueError, match="batch_size"):
        F.cross_entropy(x, torch.tensor([0]))
    with pytest.raises(RuntimeError):
        F.cross_entropy(x, torch.tensor([0.0, 1.0]))


#: Labels with an ignored one, -100 or a class, as each kind of operand; and which operands are masked.
IGNORING: dict[str, Any] = {
    "masked labels": lambda x, y, known: (x, mg.masked(torch.where(known, y, 99), known)),
    "masked scores": lambda x, y, known: (
        mg.masked(torch.where(known[:, None], x, nan), known[:, None].expand(x.shape)),
        y,
    ),
    "both jagged": lambda x, y, known: (
        mg.from_lengths(x.movedim(1, -1), known.sum(1), layout=torch.jagged).movedim(-1, 1),
        mg.from_lengths(y, known.sum(1), layout=torch.jagged),
    ),
}


@pytest.mark.parametrize("kind", IGNORING)
@pytest.mark.parametrize(
    ("loss", "ignore_index", "weighted", "compiled"),
    [
        ("cross_entropy", 1, True, False),
        ("nll_loss", -100, False, False),
        ("cross_entropy", -100, True, True),
    ],
)
def test_an_ignored_label_is_unspecified(
    kind: str, loss: str, ignore_index: int, weighted: bool, compiled: bool
) -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 4, 5, dtype=torch.float64).log_softmax(1).requires_grad_()
    y = torch.tensor([[ignore_index, 2, 3, 0, 0], [0, ignore_index, 0, 0, 0], [3, 2, 2, 0, ignore_index]])
    known = torch.arange(5) < torch.tensor([3, 2, 5])[:, None]
    w = torch.tensor([1.0, 2.0, 3.0, 4.0]).double() if weighted else None
    here = known & (y != ignore_index)
    function = getattr(F, loss)

    def losses(scores: Any, labels: Any) -> Any:
        return function(scores, labels, w, ignore_index=ignore_index, reduction="none")

    call = torch.compile(losses, backend="aot_eager", fullgraph=True) if compiled else losses
    found = call(*IGNORING[kind](x.detach() if compiled else x, y, known))
    assert found.mask.tolist() == here.tolist()
    expected = function(x.movedim(1, -1)[here], y[here], w, reduction="none")  # the others deleted
    torch.testing.assert_close(found.compressed(), expected)
    torch.testing.assert_close(found.mean(), expected.mean())
    if not compiled:
        torch.testing.assert_close(gradient(found.mean(), x), gradient(expected.mean(), x))


def test_nothing_left_is_a_number_without_a_gradient() -> None:
    x, w = poisoned(LOGITS, requires_grad=True), leaf(1.0, 1.0, 1.0, 1.0).detach()
    none = mg.masked(LABELS, on(0, 0, 0, 1))
    assert_nothing(F.cross_entropy(x, torch.full((4,), -100)), nan, x)
    assert_nothing(F.cross_entropy(x, none, w, label_smoothing=0.1), nan, x)
    assert_nothing(F.cross_entropy(x[3:], LABELS[3:], reduction="sum"), 0.0, x)
    empty = mg.masked(leaf().reshape(0, 3))
    assert_nothing(F.cross_entropy(empty, torch.zeros(0, dtype=torch.long)), nan, empty)


def test_arguments_that_do_not_fit_probabilities_are_refused() -> None:
    x, t = poisoned([[0.5, None, -1.0]]), poisoned([[0.2, 0.3, 0.5]])
    with pytest.raises(RuntimeError, match="floating point type for target"):
        F.cross_entropy(x, torch.ones(1, 3, dtype=torch.long))
    with pytest.raises(RuntimeError, match="ignore_index is not supported"):
        F.cross_entropy(x, t, ignore_index=1)
    with pytest.raises(RuntimeError, match="label_smoothing"):
        F.cross_entropy(x, t, label_smoothing=2.0)
