"""mg.align against deletion: plain boolean indexing with the masks of all tensors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import maskgrad as mg

LAYOUTS = [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc]


def garbage(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    bad = torch.tensor([math.nan, math.inf, -math.inf, 1e38]).repeat(x.numel())[: x.numel()].view_as(x)
    return torch.where(mask, x, bad)


def stored(x: torch.Tensor, mask: torch.Tensor, layout: torch.layout) -> Any:
    found = mg.masked(garbage(x, mask), mask)
    return found if layout == torch.strided else found.to_sparse(layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("other", [*LAYOUTS, "plain"], ids=str)
def test_pairs_are_those_of_both_masks(layout: torch.layout, other: Any) -> None:
    torch.manual_seed(0)
    for shape, density in [((5, 7), 0.6), ((5, 7), 0.0), ((1, 1), 1.0), ((3, 0), 0.6), ((0, 3), 0.6)]:
        x, y = torch.randn(shape), torch.randn(shape)
        a, b = torch.rand(shape) < density, torch.rand(shape) < density
        if other == "plain":
            b = torch.ones_like(b)
        found = mg.align(stored(x, a, layout), y if other == "plain" else stored(y, b, other))
        torch.testing.assert_close(found, (x[a & b], y[a & b]), rtol=0, atol=0)


@pytest.mark.parametrize("class_dim", [None, 1, -1])
def test_scores_keep_their_classes(class_dim: int | None) -> None:
    torch.manual_seed(1)
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
    mask = torch.tensor([[True, True], [True, False], [False, True]])
    scores = mg.masked(torch.ones(3, 2), mask)
    with pytest.raises(ValueError, match=r"at 1 of 2 positions.*scores\.filled\(-math\.inf\), labels"):
        mg.align(scores, mg.masked(torch.zeros(3, dtype=torch.long), torch.tensor([True, True, False])))
    found = mg.align(scores, mg.masked(torch.zeros(3, dtype=torch.long), torch.tensor([True, False, False])))
    assert found[0].tolist() == [[1.0, 1.0]]


def test_jagged_batches() -> None:
    lengths = torch.tensor([2, 0, 3])
    x, scores, labels = torch.randn(3, 3), torch.randn(3, 3, 5), torch.randint(0, 5, (3, 3))
    mask = torch.arange(3) < lengths[:, None]
    jagged = [mg.from_lengths(t, lengths, layout=torch.jagged) for t in (x, scores, labels)]
    torch.testing.assert_close(mg.align(jagged[0], jagged[0] * 2), (x[mask], 2 * x[mask]))
    torch.testing.assert_close(mg.align(jagged[1], jagged[2]), (scores[mask], labels[mask]))
    assert mg.align(jagged[1], jagged[2])[0].data_ptr() == jagged[1]._values.data_ptr()  # nothing is copied
    other = torch.tensor([[True, False, True], [True, True, True], [False, True, True]])
    both = mask & other
    for target in (mg.masked(labels, other), mg.masked(labels, other).to_sparse()):
        torch.testing.assert_close(mg.align(jagged[1], target), (scores[both], labels[both]))
    shorter = mg.from_lengths(labels, torch.tensor([1, 1, 3]), layout=torch.jagged)
    both = mask & shorter.mask
    torch.testing.assert_close(mg.align(jagged[1], shorter), (scores[both], labels[both]))
    torch.testing.assert_close(mg.align(jagged[1], labels), (scores[mask], labels[mask]))
    moved = jagged[1].transpose(1, 2)  # (B, C, T), as losses want it
    torch.testing.assert_close(mg.align(moved, jagged[2], class_dim=1), (scores[mask], labels[mask]))
    torch.testing.assert_close(mg.align(jagged[0].T, jagged[0].T)[0], x.T[mask.T])
    flat = mg.align(jagged[1].flatten(0, 1), jagged[2].flatten())
    torch.testing.assert_close(flat, (scores[mask], labels[mask]))


def test_weights_come_along_and_dtypes_stay() -> None:
    x = mg.masked(torch.tensor([1, 2, 3]), torch.tensor([True, False, True]))
    found = mg.align(
        x, torch.tensor([True, False, False]), torch.tensor([0.5, 0.25, 2.0], dtype=torch.float16)
    )
    assert [part.dtype for part in found] == [torch.int64, torch.bool, torch.float16]
    assert [part.tolist() for part in found] == [[1, 3], [True, False], [0.5, 2.0]]


@pytest.mark.parametrize("size", [5, 5000])
def test_gradients_reach_the_aligned_entries(size: int) -> None:
    x = torch.randn(size, requires_grad=True)
    known, other = torch.rand(size) > 0.5, torch.rand(size) > 0.5
    prediction = mg.masked(torch.where(known, x, math.nan), known)
    (mg.align(prediction, mg.masked(torch.ones(size), other))[0] * 2).sum().backward()
    (mg.masked(x, known).compressed() * 3).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, (known & other) * 2.0 + known * 3.0)


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
