r"""Sums, extrema and softmax over segments of stored entries, in ordinary PyTorch.

Segment k is the entries ``order[pointers[k]:pointers[k + 1]]``, or, without an ``order``, the entries
``pointers[k]:pointers[k + 1]`` themselves, as in a CSR tensor.

.. math:: s_k = \sum_{i \in k} x_i, \qquad y_i = \frac{e^{x_i}}{\sum_{j \in k(i)} e^{x_j}}

Shapes: ``n`` entries, ``g`` segments, ``*dense`` the shape of one entry; ``pointers`` (g + 1,), ``order`` (n,) lists
every entry once. Half precision is added in float32, everything else as in ``merge_rows``. PyTorch differentiates the
formulas; only the sum has a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.coalescing import merge_slots
from maskgrad.kernels.kernel import FLOATS, HALVES, apply_of, kernel
from maskgrad.kernels.selection import is_invariant
from maskgrad.mode import TRACED, mode

_WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.complex32: torch.complex64,
    torch.complex64: torch.complex128,
}


@dataclass(frozen=True)
class Rows:
    """Which of n ``entries`` are in which segment: see the top of this file."""

    pointers: Tensor
    order: Tensor | None
    entries: int
    _memory: dict[Any, Any] = field(default_factory=dict, repr=False, kw_only=True)

    @property
    def number(self) -> int:
        """Number of segments."""
        return self.pointers.shape[0] - 1

    @property
    def index(self) -> Tensor:
        """The segment of each entry (n,)."""
        found: Tensor = self._once("index", lambda: segment_index(self.pointers, self.order, self.entries))
        return found

    def count(self) -> Tensor:
        """Number of entries of each segment (g,)."""
        found: Tensor = self._once("count", self.pointers.diff)
        return found

    def count_for(self, like: Tensor) -> Tensor:
        """:meth:`count`, shaped to be combined with ``like`` (., *dense), in its (real) dtype."""
        dtype = like.dtype.to_real() if like.is_complex() else like.dtype
        return self.count().to(dtype).reshape(-1, *(1,) * (like.ndim - 1))

    def _once(self, key: Any, compute: Callable[[], Any]) -> Any:
        # First, because the rest cannot be traced; in inference mode no backward pass could use what is
        # made now.
        if mode() in TRACED or torch.is_inference_mode_enabled():
            return compute()
        if key not in self._memory:
            self._memory[key] = compute()
        return self._memory[key]


def sort_rows(indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Segments of equal ``indices`` (n,): pointers, stable order, ascending distinct indices."""
    ascending, order = torch.sort(indices, stable=True)
    rows, counts = torch.unique_consecutive(ascending, return_counts=True)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), order, rows


def segment_index(pointers: Tensor, order: Tensor | None, number: int) -> Tensor:
    """Return the segment of each of ``number`` entries (n,)."""
    index = torch.repeat_interleave(pointers.diff(), output_size=number)
    return index if order is None else torch.empty_like(index).index_copy(0, order, index)


@kernel(
    "(Tensor values, Tensor pointers, Tensor? order, ScalarType dtype) -> Tensor",
    FLOATS | {torch.int32, torch.int64},
)
def sum_of_segments(values: Tensor, pointers: Tensor, order: Tensor | None, dtype: torch.dtype) -> Tensor:
    """:func:`segment_sum` in a given dtype."""
    return _added(values.to(dtype), segment_index(pointers, order, len(values)), len(pointers) - 1)


def segment_sum(values: Tensor, rows: Rows, dtype: torch.dtype | None = None) -> Tensor:
    """The sum of each segment, (n, *dense) -> (g, *dense), in ``dtype``, else that of the values (at least float32)."""
    if dtype is None:
        dtype = torch.float32 if values.dtype in HALVES else values.dtype
    wider = values.is_floating_point() and dtype in (torch.float32, torch.float64)
    is_exact = wider or values.dtype == dtype  # the loop reads without rounding
    found = sum_of_segments.fast(values, rows.pointers, rows.order, dtype) if is_exact else None
    return _added(values.to(dtype), rows.index, rows.number) if found is None else found


def segment_expand(values: Tensor, rows: Rows) -> Tensor:
    """Return the value of its segment for each entry, (g, *dense) -> (n, *dense)."""
    if values.dtype in HALVES:  # its gradient is a sum
        return segment_expand(values.float(), rows).to(values.dtype)
    if values.requires_grad and torch.is_grad_enabled() and mode() == "eager":
        return _expanded(values, rows)  # type: ignore[no-any-return]
    return values.index_select(0, rows.index)


class _Expanded(torch.autograd.Function):
    """Entries given the values of their segments: the gradient is added by the loop."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        return values.index_select(0, rows.index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return segment_sum(grad, ctx.rows), None


_expanded = apply_of(_Expanded)


def segment_extremum(values: Tensor, rows: Rows, largest: bool) -> Tensor:
    """The largest or smallest entry of each segment, NaN if it has one; any value if it is empty."""
    return merge_slots(rows.index, values, rows.number, rows.count(), "amax" if largest else "amin")


def segment_softmax(values: Tensor, rows: Rows, logarithm: bool = False) -> Tensor:
    """Softmax within each segment, or its logarithm; half precision is rounded once, at the end."""
    wide = values.float() if values.dtype in HALVES else values
    shifted = wide - segment_expand(segment_extremum(wide.detach(), rows, True), rows)
    powers = shifted.exp()
    added = segment_sum(powers, rows)
    if logarithm:
        added = torch.where(added == 0, 1, added)  # an empty segment: no derivative
        result = shifted - segment_expand(added.log(), rows)
    else:
        result = powers / segment_expand(added, rows)
    return result.to(values.dtype)


def widened(values: Tensor) -> Tensor:
    """Cast to the precision of the computation: half precision to float32, float32 to float64."""
    return values.to(_WIDER.get(values.dtype, values.dtype))


def _added(values: Tensor, index: Tensor, number: int) -> Tensor:
    wide = values.double() if values.dtype in HALVES and is_invariant() else widened(values)
    return wide.new_zeros((number, *wide.shape[1:])).index_add(0, index, wide).to(values.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, pointers, order, _ = inputs
    ctx.number, ctx.dtype = values.shape[0], values.dtype
    ctx.save_for_backward(pointers, order)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    pointers, order = ctx.saved_tensors
    return segment_expand(grad.to(ctx.dtype), Rows(pointers, order, ctx.number)), None, None, None


sum_of_segments.derive(_save, _backward)
