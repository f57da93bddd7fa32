"""What each rank says of its gradient before an exchange, and the kind of the result.

A rank reads its gradient as a :class:`~maskgrad.gradients.gradient.Gradient`: merged, rows ascending, in the dtype of
the sum, as half precision is added in float32, also duplicates on one rank. None: the rank has no gradient.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.gradients.added import of_distinct_rows
from maskgrad.gradients.gradient import AnyGradient, Gradient, read
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.tensor import of_entries, stored_of
from maskgrad.patterns.conversion import BLOCKED, LAYOUTS
from maskgrad.sparse import prod

__all__ = ["GradientFacts", "ReductionPlan", "local_gradient", "reduction_plan"]

_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.complex32,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


class GradientFacts(NamedTuple):
    """Description of a gradient for other ranks, needed to receive it: plain integers."""

    present: int = 0
    masked: int = 0
    """1 for a MaskedTensor."""
    layout: int = 0
    """Index into ``LAYOUTS``."""
    dtype: int = 0
    """Index into ``_DTYPES``, of the original gradient."""
    leading: int = 0
    rows: int = 0
    """Number of listed rows."""
    height: int = 0
    """Block size; 0 without blocks."""
    width: int = 0


def local_gradient(
    gradient: AnyGradient | None, shape: torch.Size, name: str
) -> tuple[GradientFacts, Gradient | None]:
    """Check and read a gradient of any kind: merged, in the dtype of the sums.

    ``shape`` is the required shape, ``name`` the name in errors: TypeError for non-tensors, or an unknown layout
    or dtype; ValueError for another shape, or indices that contradict each other; IndexError for one outside the shape.
    """
    if gradient is None:
        return GradientFacts(), None
    if not isinstance(gradient, (Tensor, MaskedTensor)):
        raise TypeError(f"{name} must be a tensor or a MaskedTensor, found {type(gradient).__name__}")
    if gradient.shape != shape:
        raise ValueError(f"{name} must have shape {tuple(shape)}, found {tuple(gradient.shape)}")
    if gradient.dtype not in _DTYPES:
        raise TypeError(f"{name} has dtype {gradient.dtype}, which cannot be summed; convert it first")
    found = read(gradient, name)
    found = found.with_values(found.values.to(ProcessGroup.summable(gradient.dtype))).merged(ascending=True)
    # rows are exchanged, in the same way for jagged gradients and lists of coordinates
    layout = torch.sparse_coo if gradient.layout == torch.jagged else gradient.layout
    facts = GradientFacts(
        present=1,
        masked=int(isinstance(gradient, MaskedTensor)),
        layout=LAYOUTS.index(layout),
        dtype=_DTYPES.index(gradient.dtype),
        leading=found.leading,
        rows=0 if found.rows is None else len(found.rows),
    )
    if gradient.layout in BLOCKED:
        stored = stored_of(gradient) if isinstance(gradient, MaskedTensor) else None
        values = gradient.values() if stored is None else stored.values
        height, width = values.shape[found.leading - 1 : found.leading + 1]
        facts = facts._replace(height=height, width=width)
    return facts, found


class ReductionPlan(NamedTuple):
    """Kind of the result of all ranks; every rank computes it from the same facts."""

    shape: torch.Size
    layout: torch.layout
    masked: bool
    blocksize: tuple[int, int] | None
    dtype: torch.dtype
    leading: int
    """Number of leading dimensions indexed by rows."""
    counts: tuple[int, ...]
    """Number of rows of ``leading`` of each rank; all 0 for results without rows."""
    listed: bool
    """Whether lists of rows are sent instead of dense values."""
    divisor: int
    """Divisor of the sum; 0: for each entry the number of ranks that specify it."""
    partial: bool
    """Whether the mask of the result, and the number of ranks per entry, must be exchanged."""

    @property
    def summed(self) -> torch.dtype:
        """The dtype of the sums."""
        return ProcessGroup.summable(self.dtype)

    @property
    def number_of_rows(self) -> int:
        """Number of rows of the full shape."""
        return prod(self.shape[: self.leading])

    @property
    def row_shape(self) -> torch.Size:
        """Shape of one row."""
        return self.shape[self.leading :]

    def of_whole(self, total: Tensor, count: Tensor | None) -> AnyGradient:
        """Make the result from dense sums, and the number of ranks that specify each row."""
        if self.layout is torch.strided:
            count = None if count is None else count.view(self.shape)
            values = self._divided(total.view(self.shape), count)
            return of_entries(values, count > 0) if self.masked and count is not None else values
        assert count is not None
        rows = count.nonzero().view(-1)
        return self.of_rows(rows, total.view(len(count), *self.row_shape)[rows], count[rows])

    def of_rows(self, rows: Tensor, total: Tensor, count: Tensor | None) -> AnyGradient:
        """Make the result from distinct ascending ``rows`` (m,) with sums (m, *row), by ``count`` (m,) ranks each."""
        if count is not None:
            count = count.view(-1, *(1,) * (total.dim() - 1))
        values = self._divided(total, count)
        return of_distinct_rows(
            rows, values, self.shape, self.leading, self.layout, self.blocksize, self.masked
        )

    def _divided(self, total: Tensor, count: Tensor | None) -> Tensor:
        """``total`` divided, and rounded once; ``count`` broadcasts to it."""
        if self.divisor == 0:
            assert count is not None
            total = total / count.clamp(min=1)
        elif self.divisor > 1:
            total = total / self.divisor
        return total.to(self.dtype)


def reduction_plan(
    facts: list[GradientFacts], shape: torch.Size, op: str, transport: str, present: int
) -> ReductionPlan | None:
    """Make the plan for one gradient, from the :class:`GradientFacts` of each rank; None if no rank has any.

    The kind depends on the gradients only: one dense contribution makes the result dense, a Boolean mask makes it
    masked, and sparse ones stay sparse. ``present`` is the divisor of ``"avg"``; ``"auto"`` sends fewer bytes.
    """
    kinds = {(bool(f.masked), LAYOUTS[f.layout], f.height, f.width) for f in facts if f.present}
    if not kinds:
        return None
    dtype = functools.reduce(torch.promote_types, [_DTYPES[f.dtype] for f in facts if f.present])
    if dtype is torch.bool:
        dtype = torch.int64
    masked = any(kind[0] for kind in kinds)
    dense = (False, torch.strided, 0, 0) in kinds
    leading = max(f.leading for f in facts)
    counts = tuple(f.rows * prod(shape[f.leading : leading]) for f in facts)
    divisor = {"sum": 1, "avg": present, "mean": 0}[op]
    if any(kind[1] is torch.strided for kind in kinds):  # then every entry is a row
        none, partial = (0,) * len(facts), not dense or not divisor
        return ReductionPlan(
            shape, torch.strided, not dense, None, dtype, len(shape), none, False, divisor, partial
        )
    layouts = {kind[1:] for kind in kinds}
    layout, height, width = layouts.pop() if len(layouts) == 1 else (torch.sparse_coo, 0, 0)
    listed = transport == "sparse" or (
        transport == "auto" and _lists_are_shorter(counts, shape, leading, dtype)
    )
    blocksize = (height, width) if height else None
    return ReductionPlan(shape, layout, masked, blocksize, dtype, leading, counts, listed, divisor, True)


def _lists_are_shorter(counts: tuple[int, ...], shape: torch.Size, leading: int, dtype: torch.dtype) -> bool:
    """Compare the bytes that each rank receives: from all others, or twice the dense size in a ring."""
    rows, row = prod(shape[:leading]), prod(shape[leading:]) * ProcessGroup.summable(dtype).itemsize
    return sum(counts) * (row + 8) <= 2 * rows * (row + 4)
