r"""Reductions and softmax over segments of stored entries, in ordinary PyTorch.

Segment k is the entries ``order[pointers[k]:pointers[k + 1]]``, or, without an ``order``, the entries
``pointers[k]:pointers[k + 1]`` themselves, as in a CSR tensor.

.. math:: s_k = \sum_{i \in k} x_i, \qquad y_i = \frac{e^{x_i}}{\sum_{j \in k(i)} e^{x_j}}, \qquad
          \bar x_i = y_i \Bigl(\bar y_i - \sum_{j \in k(i)} y_j \bar y_j\Bigr)

Shapes: ``n`` entries, ``g`` segments, ``*dense`` the shape of one entry; ``pointers`` (g + 1,), ``order`` (n,) lists
every entry once. Half precision is added in float32, everything else as in
``merge_rows``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.coalescing import merge_slots
from maskgrad.kernels.kernel import FLOATS, HALVES, Kernel, kernel

_MERGEABLE = FLOATS | {torch.int32, torch.int64}

_SEGMENTS = "Tensor pointers, Tensor? order"

_WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.complex32: torch.complex64,
    torch.complex64: torch.complex128,
}


@kernel(
    "(Tensor indices, SymInt num_rows) -> (Tensor, Tensor, Tensor)", frozenset((torch.int32, torch.int64))
)
def sort_rows(indices: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Segments of equal ``indices`` (n,) in [0, num_rows): pointers, stable order, ascending distinct indices."""
    ascending, order = torch.sort(indices, stable=True)
    rows, counts = torch.unique_consecutive(ascending, return_counts=True)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), order, rows


def segment_index(pointers: Tensor, order: Tensor | None, number: int) -> Tensor:
    """Return the segment of each of ``number`` entries (n,)."""
    index = torch.repeat_interleave(pointers.diff(), output_size=number)
    return index if order is None else torch.empty_like(index).index_copy(0, order, index)


@kernel(f"(Tensor values, {_SEGMENTS}, ScalarType? dtype=None) -> Tensor", _MERGEABLE)
def segment_sum(
    values: Tensor, pointers: Tensor, order: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """The sum of each segment, (n, *dense) -> (g, *dense), in ``dtype``, else that of the values (at least float32)."""
    if dtype is None:
        dtype = torch.float32 if values.dtype in HALVES else values.dtype
    return _merged(values.to(dtype), pointers, order, "sum")


@kernel(f"(Tensor values, {_SEGMENTS}, SymInt number) -> Tensor", _MERGEABLE, numbers=lambda *args: args[3])
def segment_expand(values: Tensor, pointers: Tensor, order: Tensor | None, number: int) -> Tensor:
    """Return the value of its segment for each of ``number`` entries, (g, *dense) -> (n, *dense)."""
    return values.index_select(0, segment_index(pointers, order, number))


@kernel(f"(Tensor values, {_SEGMENTS}, bool largest) -> Tensor", _MERGEABLE)
def segment_extremum(values: Tensor, pointers: Tensor, order: Tensor | None, largest: bool) -> Tensor:
    """The largest or smallest entry of each segment, NaN if it has one; any value if it is empty.

    Ties share the gradient evenly.
    """
    return _merged(values, pointers, order, "amax" if largest else "amin")


@kernel(f"(Tensor values, {_SEGMENTS}, bool logarithm) -> Tensor", FLOATS)
def segment_softmax(
    values: Tensor, pointers: Tensor, order: Tensor | None = None, logarithm: bool = False
) -> Tensor:
    """Softmax within each segment, or its logarithm; half precision is rounded once, at the end."""
    wide = values.float() if values.dtype in HALVES else values
    best = segment_extremum.reference(wide.detach(), pointers, order, True)
    shifted = wide - segment_expand.reference(best, pointers, order, len(values))
    powers = shifted.exp()
    added = segment_sum.reference(powers, pointers, order)
    if logarithm:
        added = torch.where(added == 0, 1, added)  # an empty segment: no derivative
        result = shifted - segment_expand.reference(added.log(), pointers, order, len(values))
    else:
        result = powers / segment_expand.reference(added, pointers, order, len(values))
    return result.to(values.dtype)


@kernel(f"(Tensor grad, Tensor output, {_SEGMENTS}, bool logarithm) -> Tensor", FLOATS)
def segment_softmax_backward(
    grad: Tensor, output: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool
) -> Tensor:
    """The gradient of the entries from that of their (logarithmic) softmax ``output``."""
    wide, soft = (x.float() if x.dtype in HALVES else x for x in (grad, output))
    if logarithm:
        total = segment_sum.reference(wide, pointers, order)
        result = wide - soft.exp() * segment_expand.reference(total, pointers, order, len(grad))
    else:
        total = segment_sum.reference(soft * wide, pointers, order)
        result = soft * (wide - segment_expand.reference(total, pointers, order, len(grad)))
    return result.to(output.dtype)


def widened(values: Tensor) -> Tensor:
    """Cast to the precision of the computation: half precision to float32, float32 to float64."""
    return values.to(_WIDER.get(values.dtype, values.dtype))


def per_segment(pointers: Tensor, like: Tensor) -> Tensor:
    """The size of each segment, shaped to be combined with ``like`` (., *dense), in its (real) dtype."""
    dtype = like.dtype.to_real() if like.is_complex() else like.dtype
    return pointers.diff().to(dtype).reshape(-1, *(1,) * (like.ndim - 1))


def _merged(values: Tensor, pointers: Tensor, order: Tensor | None, reduce: str) -> Tensor:
    index = segment_index(pointers, order, values.shape[0])
    return merge_slots(index, values, pointers.shape[0] - 1, pointers.diff(), reduce)


def derive_segments(of: Kernel[..., Any], backward: Callable[..., Tensor | None]) -> None:
    """Let ``backward(grad, values, last result, pointers, order, *numbers)`` be the derivative of the first result."""

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        values, pointers, order, *ctx.numbers = inputs
        results = output if isinstance(output, tuple) else (output,)
        if results[1:]:
            ctx.mark_non_differentiable(*results[1:])
        ctx.save_for_backward(values, results[-1], pointers, order)

    def derivative(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return backward(grad, *ctx.saved_tensors, *ctx.numbers), None, None, *(None for _ in ctx.numbers)

    of.derive(save, derivative)


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, pointers, order, _ = inputs
    ctx.number, ctx.dtype = values.shape[0], values.dtype
    ctx.save_for_backward(pointers, order)


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    pointers, order = ctx.saved_tensors
    return segment_expand(grad.to(ctx.dtype), pointers, order, ctx.number), None, None, None


def _save_spread(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, pointers, order, _ = inputs
    ctx.dtype = values.dtype
    ctx.save_for_backward(pointers, order)


def _spread_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return segment_sum(grad, *ctx.saved_tensors).to(ctx.dtype), None, None, None


def _save_extremum(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, pointers, order, _ = inputs
    ctx.save_for_backward(values, output, pointers, order)


def _extremum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    values, best, pointers, order = ctx.saved_tensors
    values, best = values.detach(), best.detach()
    largest = segment_expand(best, pointers, order, values.shape[0])
    hit = (values == largest) | (values.isnan() & largest.isnan())
    ties = segment_sum(hit.to(torch.float32), pointers, order)
    share = segment_expand((grad / ties).to(values.dtype), pointers, order, values.shape[0])
    return torch.where(hit, share, 0), None, None, None


def _save_softmax(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, pointers, order, ctx.logarithm = inputs
    ctx.save_for_backward(output, pointers, order)


def _softmax_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    output, pointers, order = ctx.saved_tensors
    return segment_softmax_backward(grad, output, pointers, order, ctx.logarithm), None, None, None


segment_sum.derive(_save_sum, _sum_backward)
segment_expand.derive(_save_spread, _spread_backward)
segment_extremum.derive(_save_extremum, _extremum_backward)
segment_softmax.derive(_save_softmax, _softmax_backward)
segment_softmax_backward.derive_through_reference()
