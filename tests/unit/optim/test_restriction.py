"""Gradients without what is frozen."""

from __future__ import annotations

import torch

from maskgrad.optim.gradients import Dense, Masked, Rows
from maskgrad.optim.restriction import restricted

inf, nan = float("inf"), float("nan")


def test_the_restricted_gradient() -> None:
    mask = torch.tensor([[True, False], [False, False], [True, True]])
    values = torch.tensor([[1.0, nan], [nan, nan], [3.0, 4.0]])
    dense = restricted(Dense(values), mask)
    assert isinstance(dense, Masked)
    assert torch.equal(dense.mask, mask)
    assert dense.values.tolist() == [[1.0, 0.0], [0.0, 0.0], [3.0, 4.0]]
    some = restricted(Masked(values, torch.tensor([[True, True], [True, True], [False, True]])), mask)
    assert isinstance(some, Masked)
    assert some.mask.tolist() == [[True, False], [False, False], [False, True]]
    rows = Rows(torch.tensor([2, 1, 0]), torch.tensor([[1.0, 2.0], [nan, inf], [3.0, nan]]), 1)
    part = restricted(rows, mask)
    assert isinstance(part, Rows)
    assert part.indices.tolist() == [2, 1, 0]
    assert part.values.tolist() == [[1.0, 2.0], [0.0, 0.0], [3.0, 0.0]]
    assert part.mask is mask
    whole = restricted(rows, torch.tensor([[False], [True], [True]]).expand(3, 2))
    assert isinstance(whole, Rows)
    assert (whole.indices.tolist(), whole.leading, whole.mask) == ([2, 1], 1, None)
    cube = mask.view(3, 1, 2).expand(3, 2, 2).contiguous()
    pieces = restricted(Rows(torch.tensor([5, 0]), torch.arange(4.0).view(2, 2), 2), cube)
    assert isinstance(pieces, Rows)
    assert (pieces.indices.tolist(), pieces.values.tolist(), pieces.leading) == (
        [10, 11, 0],
        [0.0, 1.0, 2.0],
        3,
    )
    entries = restricted(Rows(torch.tensor([5, 1, 0]), torch.arange(3.0), 2), mask)
    assert isinstance(entries, Rows)
    assert (entries.indices.tolist(), entries.values.tolist()) == ([5, 0], [0.0, 2.0])
    twice = restricted(Rows(torch.tensor([0, 0]), torch.ones(2, 3, 2), 0), mask)
    assert isinstance(twice, Masked)
    assert twice.values.tolist() == [[2.0, 0.0], [0.0, 0.0], [2.0, 2.0]]
    assert restricted(rows, torch.ones(3, 2).bool()) is rows
    assert restricted(rows, None) is rows
    nothing = restricted(Rows(torch.empty(0).long(), torch.empty(0, 2), 1), mask)
    assert isinstance(nothing, Rows)
    assert len(nothing.indices) == 0
