"""Writes to masks of which several entries share one Boolean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nan

import maskgrad as mg
from tests.poison import assert_entries, on


def _rows_by_index(x: Any, rows: Any) -> None:
    x[torch.tensor([2, 0])] = rows


def _rows_by_slice(x: Any, rows: Any) -> None:
    x[::2] = rows.flip(0)


def _rows_by_mask(x: Any, rows: Any) -> None:
    x[on(1, 0, 1, 0)] = rows.flip(0)


def _row_by_row(x: Any, rows: Any) -> None:
    x[0].copy_(rows[1])
    x[2] = rows[0]


def _copied(x: Any, rows: Any) -> None:
    x[[2, 0]] = rows
    x.copy_(x.clone())


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("write", [_rows_by_index, _rows_by_slice, _rows_by_mask, _row_by_row, _copied])
def test_whole_rows_of_a_mask_that_repeats(write: Callable[..., None], lent: bool) -> None:
    mask = on(0, 1, 0, 0)[:, None]
    queue = mg.masked(torch.tensor([[nan] * 3, [1.0] * 3, [nan] * 3, [nan] * 3]), mask)
    view, before = queue[:3], queue * 1 if lent else None
    write(queue, torch.tensor([[5.0, 6.0, 7.0], [8.0, 9.0, 10.0]]))
    rows = [[8.0, 9.0, 10.0], [1.0] * 3, [5.0, 6.0, 7.0], [None] * 3]
    assert_entries(queue, rows)
    assert_entries(view, rows[:3])
    if before is not None:
        assert_entries(before, [[None] * 3, [1.0] * 3, [None] * 3, [None] * 3])
    elif write is not _row_by_row:  # which copies the mask, as a graph may keep the old one
        assert mask.squeeze(1).tolist() == [True, True, True, False]
    queue[1] = mg.unspecified
    assert_entries(queue, [rows[0], [None] * 3, rows[2], rows[3]])
    assert queue._pattern.current.stride(1) == 0


def test_a_part_of_what_shares_a_boolean_is_not_written() -> None:
    queue = mg.masked(torch.zeros(2, 3), on(1, 0)[:, None])
    for part in (queue, queue[:, :2], queue[1:], queue[:, 0:2].expand(2, 2, 2)):
        with pytest.raises(RuntimeError, match=r"share one Boolean.*x\.clone\(\)"):
            part[..., 0] = 5.0
    with pytest.raises(RuntimeError, match="share one Boolean"):
        queue[:, 0].fill_(1.0)
    with pytest.raises(RuntimeError, match="share one Boolean"):
        queue[1] = mg.masked(torch.ones(3), on(1, 1, 0))
    assert_entries(queue, [[0.0] * 3, [None] * 3])
