"""Writes to masks of which several entries share one Boolean."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nan

import maskgrad as mg
from tests.poison import assert_entries, on


def row_by_row(x: Any, rows: Any) -> None:
    x[0].copy_(rows[1])
    x[2] = rows[0]


def copied(x: Any, rows: Any) -> None:
    x[[2, 0]] = rows
    x.copy_(x.clone())


#: Two rows go to 2 and to 0.
WRITES: dict[str, Callable[..., Any]] = {
    "index": lambda x, rows: operator.setitem(x, torch.tensor([2, 0]), rows),
    "slice": lambda x, rows: operator.setitem(x, slice(None, None, 2), rows.flip(0)),
    "mask": lambda x, rows: operator.setitem(x, on(1, 0, 1, 0), rows.flip(0)),
    "row by row": row_by_row,
    "copied": copied,
}


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_whole_rows_of_a_mask_that_repeats(name: str, lent: bool) -> None:
    mask = on(0, 1, 0, 0)[:, None]
    queue = mg.masked(torch.tensor([[nan] * 3, [1.0] * 3, [nan] * 3, [nan] * 3]), mask)
    view, before = queue[:3], queue * 1 if lent else None
    WRITES[name](queue, torch.tensor([[5.0, 6.0, 7.0], [8.0, 9.0, 10.0]]))
    rows = [[8.0, 9.0, 10.0], [1.0] * 3, [5.0, 6.0, 7.0], [None] * 3]
    assert_entries(queue, rows)
    assert_entries(view, rows[:3])
    if before is not None:
        assert_entries(before, [[None] * 3, [1.0] * 3, [None] * 3, [None] * 3])
    elif name != "row by row":  # which copies the mask, as a graph may keep the old one
        assert mask.squeeze(1).tolist() == [True, True, True, False]
    queue[1] = mg.unspecified
    assert_entries(queue, [rows[0], [None] * 3, rows[2], rows[3]])


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
