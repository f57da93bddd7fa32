"""Contributions of each rank to an exchange, and the kind of the result.

=====================  =======================================================  ===========================
kind of gradient       how a rank holds it                                      entries that are specified
=====================  =======================================================  ===========================
None                   nothing                                                  none
strided tensor         ``values`` of the whole shape                            all
Boolean MaskedTensor   ``values`` of the whole shape, 0 where unspecified       those under ``mask``
anything sparse        ``rows`` (n,), ascending, each once, ``values`` (n, *)   those of the rows listed
=====================  =======================================================  ===========================

Rows are counted in the product of the first ``leading`` sizes. Values are in the dtype of the sum:
half precision is added in float32, also duplicates on one rank.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.gradients.added import of_distinct_rows
from maskgrad.gradients.gradient import AnyGradient, read
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.tensor import of_entries, stored_of
from maskgrad.patterns.conversion import BLOCKED, LAYOUTS
from maskgrad.sparse import prod

__all__ = ["GradientFacts", "LocalGradient", "ReductionPlan", "local_gradient", "reduction_plan"]

_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.complex32,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


class GradientFacts(NamedTuple):
    """Description of a gradient for other ranks, needed to receive it: plain integers."""

    present: int = 0
    masked: int = 0
    """0 for a tensor, 1 for a MaskedTensor."""
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


@dataclass(frozen=True, slots=True)
class LocalGradient:
    """The gradient of one rank; see the table above for unused fields."""

    shape: torch.Size
    facts: GradientFacts = GradientFacts()  # noqa: RUF009  (tuples are immutable)
    values: Tensor | None = None
    mask: Tensor | None = None
    rows: Tensor | None = None

    def with_leading(self, leading: int) -> LocalGradient:
        """The same, listing rows of the first ``leading`` dimensions, which must be at least as many."""
        before = self.facts.leading
        if self.rows is None or before == leading:
            return self
        assert self.values is not None
        parts = prod(self.shape[before:leading])
        finer = self.rows.unsqueeze(1) * parts + torch.arange(parts, device=self.rows.device)
        facts = self.facts._replace(leading=leading)
        return replace(
            self, facts=facts, rows=finer.view(-1), values=self.values.reshape(-1, *self.shape[leading:])
        )

    def whole_values(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Dense values, 0 where unspecified."""
        if self.values is not None and self.rows is None:
            return self.values.to(dtype)
        whole = torch.zeros(self.shape, dtype=dtype, device=device)
        if self.values is not None and self.rows is not None:
            rows = whole.view(prod(self.shape[: self.facts.leading]), *self.values.shape[1:])
            rows.index_copy_(0, self.rows, self.values.to(dtype))
        return whole

    def specified(self, leading: int, device: torch.device) -> Tensor:
        """int32 (n,): 1 for the rows of the first ``leading`` dimensions that are specified."""
        if self.mask is not None:
            return self.mask.to(torch.int32).reshape(-1)
        number = prod(self.shape[:leading])
        if self.rows is None:
            return torch.full((number,), self.facts.present, dtype=torch.int32, device=device)
        return torch.zeros(number, dtype=torch.int32, device=device).index_fill_(0, self.rows, 1)


def local_gradient(gradient: AnyGradient | None, shape: torch.Size, name: str) -> LocalGradient:
    """Check and read a gradient of any kind.

    ``shape`` is the required shape, ``name`` the name in errors: TypeError for non-tensors, or an unknown layout
    or dtype; ValueError for another shape, or indices that contradict each other; IndexError for one outside the shape.
    """
    if gradient is None:
        return LocalGradient(shape)
    if not isinstance(gradient, (Tensor, MaskedTensor)):
        raise TypeError(f"{name} must be a tensor or a MaskedTensor, found {type(gradient).__name__}")
    if gradient.shape != shape:
        raise ValueError(f"{name} must have shape {tuple(shape)}, found {tuple(gradient.shape)}")
    if gradient.dtype not in _DTYPES:
        raise TypeError(f"{name} has dtype {gradient.dtype}, which cannot be summed; convert it first")
    found = read(gradient, name)
    found = found.with_values(found.values.to(ProcessGroup.summable(gradient.dtype))).merged(ascending=True)
    rows, dtype = 0 if found.rows is None else len(found.rows), _DTYPES.index(gradient.dtype)
    facts = GradientFacts(present=1, dtype=dtype, leading=found.leading, rows=rows)
    # rows are exchanged, in the same way for jagged gradients and lists of coordinates
    layout = torch.sparse_coo if gradient.layout == torch.jagged else gradient.layout
    facts = facts._replace(masked=int(isinstance(gradient, MaskedTensor)), layout=LAYOUTS.index(layout))
    if gradient.layout in BLOCKED:
        stored = stored_of(gradient) if isinstance(gradient, MaskedTensor) else None
        values = gradient.values() if stored is None else stored.values
        height, width = values.shape[found.leading - 1 : found.leading + 1]
        facts = facts._replace(height=height, width=width)
    return LocalGradient(shape, facts, found.values, found.mask, found.rows)


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
