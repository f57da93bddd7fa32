"""Runs of equal indices among sorted ones: the first entry of each, and the sum of its gradients.

A run is added in float64, in an order that depends on the indices alone, by the lane of its first entry.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled


def refuse_outside(indices: Tensor, num_rows: int) -> None:
    """Raise an error unless all ``indices`` lie in the table: on a device asynchronously, else an IndexError."""
    inside = (indices >= 0) & (indices < num_rows)
    if indices.is_cuda:
        torch._assert_async(inside.all(), f"indices must lie in [0, {num_rows}), the rows of the table")
    elif not inside.all():
        name_outside(indices, num_rows)


def name_outside(indices: Tensor, num_rows: int) -> None:
    """Return the IndexError for the first of ``indices`` that lies outside the table."""
    outside = int(((indices < 0) | (indices >= num_rows)).nonzero()[0])
    raise IndexError(
        f"indices must lie in [0, {num_rows}), the rows of the table, "
        f"but indices[{outside}] is {int(indices[outside])}"
    )


@compiled
def is_first(ascending: tl.tensor, entry: tl.tensor, number: tl.tensor, rows: tl.tensor) -> tl.tensor:
    """Return which of the sorted entries begin a run of equal indices that is a row of the table."""
    row = tl.load(ascending + entry, mask=entry < number, other=-1)
    before = tl.load(ascending + entry - 1, mask=(entry > 0) & (entry < number), other=-1)
    return (row >= 0) & (row < rows) & (row != before)


@compiled
def run_sum(
    values: tl.tensor, ascending: tl.tensor, order: tl.tensor, entry: tl.tensor, column: tl.tensor, first: tl.tensor,
    number: tl.tensor, width: tl.tensor, INDEX: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The sum of the run that begins at ``entry``, in float64, for the lanes that are ``first``."""
    row = tl.load(ascending + entry, mask=first, other=-1)
    total = tl.zeros((LANES, STEP), tl.float64)
    done = entry * 0
    more = tl.max(first.to(tl.int32), axis=0)
    while more > 0:
        at = (entry + done)[:, None] + tl.arange(0, STEP)[None, :]
        there = first[:, None] & (at < number)
        same = there & (tl.load(ascending + at, mask=there, other=-1) == row[:, None])
        source = tl.load(order + at, mask=same, other=0).to(INDEX)
        total += tl.load(values + source * width + column[:, None], mask=same, other=0).to(tl.float64)
        done += STEP
        # A run continues if all entries of this step belonged to it.
        more = tl.max((tl.sum(same.to(tl.int32), axis=1) == STEP).to(tl.int32), axis=0)
    return tl.sum(total, axis=1)
