"""mg.align against deletion: plain boolean indexing with the masks of all tensors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import on

LAYOUTS = [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]


def stored(x: torch.Tensor, mask: torch.Tensor, layout: torch.layout) -> Any:
    found = mg.masked(torch.where(mask, x, math.nan if x.is_floating_point() else True), mask)
    return found if layout == torch.strided else found.to_sparse(layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("other", [*LAYOUTS, "plain"], ids=str)
def test_pairs_are_those_of_both_masks(layout: torch.layout, other: Any) -> None:
    for shape, density in [((5, 7), 0.6), ((5, 7), 0.0), ((3, 0), 0.6), ((0, 3), 0.6), ((70, 71), 0.5)]:
        x, y, weights = (
            torch.randn(shape, requires_grad=True),
            torch.rand(shape) < 0.5,
            torch.rand(shape).half(),
        )
        a, b = torch.rand(shape) < density, torch.rand(shape) < density
        b = b | (other == "plain")
        target = y if other == "plain" else stored(y, b, other)
        found = mg.align(stored(x, a, layout), target, weights)
        torch.testing.assert_close(found, (x[a & b], y[a & b], weights[a & b]), rtol=0, atol=0)
        (slope,) = torch.autograd.grad(found[0].sum() * 2, x)
        assert torch.equal(slope, (a & b) * 2.0)


@pytest.mark.parametrize("class_dim", [None, 1, -1])
def test_scores_keep_their_classes(class_dim: int | None) -> None:
    scores = torch.randn(4, 6, 3) if class_dim != -1 else torch.randn(4, 3, 6)
    labels, known, rows = torch.randint(0, 6, (4, 3)), torch.rand(4, 3) > 0.3, torch.rand(4, 3) > 0.3
    last = scores.movedim(1, -1) if class_dim != -1 else scores
    mask = rows.unsqueeze(-1 if class_dim == -1 else 1)
    for given in (mg.masked(scores, mask), mg.masked(scores, mask.expand_as(scores).contiguous())):
        found = mg.align(given, mg.masked(labels, known), class_dim=class_dim)
        torch.testing.assert_close(found, (last[known & rows], labels[known & rows]), rtol=0, atol=0)
    found = mg.align(scores, mg.masked(labels, known).to_sparse(), class_dim=class_dim)
    torch.testing.assert_close(found, (last[known], labels[known]), rtol=0, atol=0)


def test_a_class_without_a_score_is_refused_where_it_counts() -> None:
    scores, labels = mg.masked(torch.ones(3, 2), on([1, 1], [1, 0], [0, 1])), torch.zeros(3).long()
    with pytest.raises(ValueError, match=r"at 1 of 2 positions.*scores\.filled\(-math\.inf\), labels"):
        mg.align(scores, mg.masked(labels, on(1, 1, 0)))
    found = mg.align(scores, mg.masked(labels, on(1, 0, 0)))
    assert found[0].tolist() == [[1.0, 1.0]]


def test_jagged_batches() -> None:
    lengths = torch.tensor([2, 0, 3])
    x, scores, labels = torch.randn(3, 3), torch.randn(3, 3, 5), torch.randint(0, 5, (3, 3))
    mask, other = torch.arange(3) < lengths[:, None], torch.tensor([[1, 0, 1], [1, 1, 1], [0, 1, 1]]).bool()
    a, b, c = (mg.from_lengths(t, lengths, layout=torch.jagged) for t in (x, scores, labels))
    shorter = mg.from_lengths(labels, torch.tensor([1, 1, 3]), layout=torch.jagged)
    torch.testing.assert_close(mg.align(a, a * 2), (x[mask], 2 * x[mask]))
    torch.testing.assert_close(mg.align(a.T, a.T)[0], x.T[mask.T])
    assert mg.align(b, c)[0].data_ptr() == b._values.data_ptr()  # nothing is copied
    for prediction, target, both, options in (
        (b, c, mask, {}),
        (b, labels, mask, {}),
        (b, mg.masked(labels, other), mask & other, {}),
        (b, mg.masked(labels, other).to_sparse(), mask & other, {}),
        (b, shorter, mask & shorter.mask, {}),
        (b.transpose(1, 2), c, mask, {"class_dim": 1}),  # (B, C, T), as losses want it
        (b.flatten(0, 1), c.flatten(), mask, {}),
    ):
        found = mg.align(prediction, target, **options)  # type: ignore[arg-type]
        torch.testing.assert_close(found, (scores[both], labels[both]))


ONE, PAIR, LABELS = torch.ones(1), torch.ones(2), torch.zeros(2, dtype=torch.long)


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "text"),
    [
        (([1.0], ONE), {}, TypeError, "prediction must be a strided tensor or a MaskedTensor, found list"),
        ((PAIR, PAIR, "x"), {}, TypeError, "argument 3 must be a strided tensor"),
        ((torch.eye(2).to_sparse(), torch.eye(2)), {}, TypeError, r"torch.sparse_coo.*mg.from_sparse\(x\)"),
        ((PAIR, ONE), {}, ValueError, r"target must have the shape.*found \(1,\) and \(2,\).*squeeze"),
        ((PAIR[:, None], PAIR), {}, ValueError, r"must be labels, which are integers, found torch.float32.*squeeze"),
        ((torch.ones(2, 3, 5), torch.ones(2, 3).long()), {}, ValueError, "in dimension 1.*class_dim=, for example -1"),
        ((PAIR, PAIR, ONE), {}, ValueError, r"argument 3 must have the shape.*found \(1,\)"),
        ((torch.ones(2, 3), LABELS), {"class_dim": 2}, ValueError, r"be a dimension of scores \(2, 3\), found 2"),
        ((PAIR, PAIR), {"class_dim": 0}, ValueError, "class_dim is for scores.*omit it"),
    ],
)  # fmt: skip
def test_invalid_operands_are_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        mg.align(*arguments, **options)
