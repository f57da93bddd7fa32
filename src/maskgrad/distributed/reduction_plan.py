"""What kind of result the contributions of all ranks have, and on which way it is cheaper: the ranks' common decision.

Every rank computes it from the same numbers. The gradients decide, not what was declared: one dense contribution makes
the result dense, a Boolean mask makes it masked, and sparse ones stay sparse.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from maskgrad.distributed.local_gradients import DTYPES, LAYOUTS, Facts
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.gradients.added import of_distinct_rows
from maskgrad.gradients.attached import AnyGradient
from maskgrad.gradients.padded_rows import PaddedRows
from maskgrad.sparse import prod

__all__ = ["ReductionPlan", "reduction_plan"]


class ReductionPlan(NamedTuple):
    """What is to become of one slot."""

    layout: torch.layout
    masked: bool
    blocksize: tuple[int, int] | None
    dtype: torch.dtype
    leading: int
    """Rows are those of the first so many dimensions."""
    counts: tuple[int, ...]
    """How many rows each rank lists, rows of ``leading``; all 0 for results that list none."""
    listed: bool
    """Whether lists of rows travel; otherwise values of the whole shape do."""
    divisor: int
    """By what the sum is divided; 0: each entry by the number of ranks that specify it."""
    slots: int | None
    """Of a result that is PaddedRows; None: it is not."""
    partial: bool
    """Whether it has to be found out where the result is specified, and by how many ranks."""

    @property
    def summed(self) -> torch.dtype:
        """The dtype of what is added up."""
        return ProcessGroup.summable(self.dtype)

    def divided(self, total: Tensor, count: Tensor | None) -> Tensor:
        """The result of what was added up, rounded once; ``count`` broadcasts to it."""
        if self.divisor == 0:
            assert count is not None
            total = total / count.clamp(min=1)
        elif self.divisor > 1:
            total = total / self.divisor
        return total.to(self.dtype)

    def of_rows(self, rows: Tensor, values: Tensor, shape: torch.Size) -> AnyGradient:
        """A result that lists distinct ascending ``rows`` (m,) with ``values`` (m, *row)."""
        if self.slots is not None:
            return PaddedRows(rows, values, shape).resized(self.slots)
        return of_distinct_rows(rows, values, shape, self.leading, self.layout, self.blocksize, self.masked)


def reduction_plan(
    facts: list[Facts], shape: torch.Size, op: str, way: str, present: int
) -> ReductionPlan | None:
    """The decision for one slot, of which each rank told its :class:`Facts`; None if no rank has anything.

    Args:
        facts: one per rank.
        shape: of the slot.
        op: ``"sum"``, ``"avg"`` or ``"mean"``.
        way: ``"dense"`` and ``"sparse"`` prescribe how rows travel; ``"auto"``: as fewer bytes.
        present: by what ``"avg"`` divides.
    """
    kinds = {(bool(f.masked), LAYOUTS[f.layout], f.height, f.width) for f in facts if f.present}
    if not kinds:
        return None
    dtype = functools.reduce(torch.promote_types, [DTYPES[f.dtype] for f in facts if f.present])
    if dtype is torch.bool:
        dtype = torch.int64
    masked = any(kind[0] for kind in kinds)
    whole = any(kind[1] is torch.strided for kind in kinds)
    dense = (False, torch.strided, 0, 0) in kinds
    leading = max(f.leading for f in facts)
    counts = tuple(f.rows * prod(shape[f.leading : leading]) for f in facts)
    divisor = {"sum": 1, "avg": present, "mean": 0}[op]
    if whole:  # then every entry is a row by itself
        none, partial = (0,) * len(facts), not dense or not divisor
        return ReductionPlan(
            torch.strided, not dense, None, dtype, len(shape), none, False, divisor, None, partial
        )
    layouts = {kind[1:] for kind in kinds}
    layout, height, width = layouts.pop() if len(layouts) == 1 else (torch.sparse_coo, 0, 0)
    listed = way == "sparse" or (way == "auto" and _lists_are_shorter(counts, shape, leading, dtype))
    blocksize = (height, width) if height else None
    padded = all(f.masked == 2 for f in facts if f.present)
    # Sizes that do not depend on the numbers, here as in the look-up.
    slots = min(sum(f.slots for f in facts), shape[0]) if padded else None
    return ReductionPlan(layout, masked, blocksize, dtype, leading, counts, listed, divisor, slots, True)


def _lists_are_shorter(counts: tuple[int, ...], shape: torch.Size, leading: int, dtype: torch.dtype) -> bool:
    """Compare the bytes that each rank receives: from all others, or twice the whole in a ring."""
    rows, row = prod(shape[:leading]), prod(shape[leading:]) * ProcessGroup.summable(dtype).itemsize
    return sum(counts) * (row + 8) <= 2 * rows * (row + 4)
