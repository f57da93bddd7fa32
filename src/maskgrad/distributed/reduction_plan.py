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
from maskgrad.masked_tensor.tensor import of_entries
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
    strided: int = 0
    """1 for all entries of the shape, with or without a Boolean mask; 0 for listed rows."""
    dtype: int = 0
    """Index into ``_DTYPES``, of the original gradient."""
    leading: int = 0
    rows: int = 0
    """Number of listed rows."""


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
    facts = GradientFacts(
        present=1,
        masked=int(isinstance(gradient, MaskedTensor)),
        strided=int(gradient.layout is torch.strided),
        dtype=_DTYPES.index(gradient.dtype),
        leading=found.leading,
        rows=0 if found.rows is None else len(found.rows),
    )
    return facts, found


class ReductionPlan(NamedTuple):
    """Kind of the result of all ranks; every rank computes it from the same facts."""

    shape: torch.Size
    strided: bool
    masked: bool
    dtype: torch.dtype
    leading: int
    """Number of leading dimensions indexed by rows."""
    counts: tuple[int, ...]
    """Number of rows of ``leading`` of each rank; all 0 for results without rows."""
    listed: bool
    """Whether lists of rows are sent instead of dense values."""
    divisor: int
    """Divisor of the sum."""

    @property
    def partial(self) -> bool:
        """Whether the specified entries of the result must be exchanged."""
        return self.masked or not self.strided

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
        if self.strided:
            values = self._divided(total.view(self.shape))
            return values if count is None else of_entries(values, count.view(self.shape) > 0)
        assert count is not None
        rows = count.nonzero().view(-1)
        return self.of_rows(rows, total.view(len(count), *self.row_shape)[rows])

    def of_rows(self, rows: Tensor, total: Tensor) -> AnyGradient:
        """Make the result from distinct ascending ``rows`` (m,) with sums (m, *row)."""
        values = self._divided(total)
        return of_distinct_rows(rows, values, self.shape, self.leading, self.masked)

    def _divided(self, total: Tensor) -> Tensor:
        """``total`` divided, and rounded once."""
        return (total / self.divisor if self.divisor > 1 else total).to(self.dtype)


def reduction_plan(facts: list[GradientFacts], shape: torch.Size, op: str) -> ReductionPlan | None:
    """Make the plan for one gradient, from the :class:`GradientFacts` of each rank; None if no rank has any.

    The kind depends on the gradients only: one dense contribution makes the result dense, a Boolean mask makes it
    masked, and sparse ones stay sparse. They are sent in fewer bytes, as lists of rows or as a whole.
    """
    kinds = {(bool(f.strided), bool(f.masked)) for f in facts if f.present}
    if not kinds:
        return None
    dtype = functools.reduce(torch.promote_types, [_DTYPES[f.dtype] for f in facts if f.present])
    if dtype is torch.bool:
        dtype = torch.int64
    divisor = len(facts) if op == "avg" else 1
    if any(strided for strided, _ in kinds):  # then every entry is a row
        masked, none = (True, False) not in kinds, (0,) * len(facts)
        return ReductionPlan(shape, True, masked, dtype, len(shape), none, False, divisor)
    masked = any(masked for _, masked in kinds)
    leading = max(f.leading for f in facts)
    counts = tuple(f.rows * prod(shape[f.leading : leading]) for f in facts)
    listed = _lists_are_shorter(counts, shape, leading, dtype)
    return ReductionPlan(shape, False, masked, dtype, leading, counts, listed, divisor)


def _lists_are_shorter(counts: tuple[int, ...], shape: torch.Size, leading: int, dtype: torch.dtype) -> bool:
    """Compare the bytes that each rank receives: from all others, or twice the dense size in a ring."""
    rows, row = prod(shape[:leading]), prod(shape[leading:]) * ProcessGroup.summable(dtype).itemsize
    return sum(counts) * (row + 8) <= 2 * rows * (row + 4)
