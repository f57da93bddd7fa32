"""Gradients without what is frozen."""

from __future__ import annotations

import torch

from maskgrad.gradients.gradient import Gradient

inf, nan = float("inf"), float("nan")
SHAPE = torch.Size((3, 2))


def listed(rows: list[int], values: torch.Tensor, leading: int, shape: tuple[int, ...] = (3, 2)) -> Gradient:
    return Gradient(values, torch.Size(shape), rows=torch.tensor(rows, dtype=torch.int64), leading=leading)


def test_the_restricted_gradient() -> None:
    mask = torch.tensor([[True, False], [False, False], [True, True]])
    values = torch.tensor([[1.0, nan], [nan, nan], [3.0, 4.0]])
    dense = Gradient(values, SHAPE).restricted(mask)
    assert torch.equal(dense.mask, mask)
    assert dense.values.tolist() == [[1.0, 0.0], [0.0, 0.0], [3.0, 4.0]]
    given = torch.tensor([[True, True], [True, True], [False, True]])
    some = Gradient(values, SHAPE, given).restricted(mask)
    assert some.mask is not None
    assert dense.mask is not None
    assert some.mask.tolist() == [[True, False], [False, False], [False, True]]
    rows = listed([2, 1, 0], torch.tensor([[1.0, 2.0], [nan, inf], [3.0, nan]]), 1)
    part = rows.restricted(mask)
    assert part.rows is not None
    assert part.rows.tolist() == [2, 1, 0]
    assert part.values.tolist() == [[1.0, 2.0], [0.0, 0.0], [3.0, 0.0]]
    assert part.mask is mask
    whole = rows.restricted(torch.tensor([[False], [True], [True]]).expand(3, 2))
    assert whole.rows is not None
    assert (whole.rows.tolist(), whole.leading, whole.mask) == ([2, 1], 1, None)
    cube = mask.view(3, 1, 2).expand(3, 2, 2).contiguous()
    pieces = listed([5, 0], torch.arange(4.0).view(2, 2), 2, (3, 2, 2)).restricted(cube)
    assert pieces.rows is not None
    assert (pieces.rows.tolist(), pieces.values.tolist(), pieces.leading) == (
        [10, 11, 0],
        [0.0, 1.0, 2.0],
        3,
    )
    entries = listed([5, 1, 0], torch.arange(3.0), 2).restricted(mask)
    assert entries.rows is not None
    assert (entries.rows.tolist(), entries.values.tolist()) == ([5, 0], [0.0, 2.0])
    twice = listed([0, 0], torch.ones(2, 3, 2), 0).restricted(mask)
    assert twice.rows is None
    assert twice.values.tolist() == [[2.0, 0.0], [0.0, 0.0], [2.0, 2.0]]
    assert rows.restricted(torch.ones(3, 2).bool()) is rows
    assert rows.restricted(None) is rows
    nothing = listed([], torch.empty(0, 2), 1).restricted(mask)
    assert nothing.rows is not None
    assert len(nothing.rows) == 0
