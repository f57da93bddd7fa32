r"""Products of the specified entries, and their gradient: one pass over values and mask each way.

Each thread multiplies its factors in the type of the values (half precision in float32, integers in int64; of segments,
floats in float64), zeros apart, and the threads' products are multiplied. ``dull`` is the sum of 0 * x: NaN if a factor
is inf or NaN, else 0, which is the product as soon as one factor is zero. It tells such a product from one whose other
factors overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.cuda.loops import WRITES, Accumulator, over_segments, reduce, totals, write
from maskgrad.kernels.kernel import HALVES


def masked_prod(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    source, dtype = _readable(values)
    wide = torch.float32 if dtype in HALVES else dtype
    (rest, *others), view = reduce(_PRODUCT, mask, (source,), dim, (wide, wide, torch.int64, torch.int64))
    rest, dull, zeros, count = totals((rest.prod(1, keepdim=True), *others), view, keepdim)
    return torch.where(zeros > 0, dull, rest).to(dtype), rest, zeros, count


def masked_prod_backward(grad: Tensor, values: Tensor, rest: Tensor, zeros: Tensor, mask: Tensor) -> Tensor:
    few = rest, grad.to(rest.dtype), zeros.clamp(max=2).to(torch.int8)
    return write(_others, torch.empty_like(values, requires_grad=False), mask, values, *few)


def segment_prod(values: Tensor, pointers: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    source, dtype = _readable(values)
    wide = torch.float64 if source.is_floating_point() else torch.int64
    rest, dull, zeros = over_segments(_PRODUCT, pointers, order, (source,), (wide, wide, torch.int64))
    product = torch.where(zeros > 0, dull, rest).to(
        torch.promote_types(dtype, torch.float32) if wide.is_floating_point else dtype
    )
    return product, rest.float() if dtype in HALVES else rest, zeros


def segment_prod_backward(
    grad: Tensor, values: Tensor, rest: Tensor, zeros: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    out = torch.empty_like(values, requires_grad=False, memory_format=torch.contiguous_format)
    over_segments(WRITES, pointers, order, (values,), few=(rest, grad, zeros), out=out, of=_others)
    return out


def _readable(values: Tensor) -> tuple[Tensor, torch.dtype]:
    """Booleans as integers; and the type of a product."""
    if values.is_floating_point():
        return values, values.dtype
    return values.view(torch.uint8) if values.dtype == torch.bool else values, torch.int64


@compiled
def _others(x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    v, rest, grad, zeros = x
    at_zero = tl.where((v == 0) & (zeros == 1), rest, 0)
    return grad * tl.where(zeros == 0, rest / tl.where(v == 0, 1, v), at_zero)


@compiled
def _start(ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr) -> tl.tensor:
    """The product of the factors that are not zero, ``dull``, and the numbers of zeros and of factors."""
    none = tl.zeros((ROWS, COLUMNS), tl.int32)
    return tl.full((ROWS, COLUMNS), 1, ACC), tl.zeros((ROWS, COLUMNS), ACC), none, none


@compiled
def _step(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr
) -> tl.tensor:
    rest, dull, zeros, count = state
    v = x[0]
    rest *= tl.where(there & (v != 0), v, 1)
    dull += tl.where(there, v * 0, 0)
    return rest, dull, zeros + (there & (v == 0)).to(tl.int32), count + there.to(tl.int32)


@compiled
def _times(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a * b


@compiled
def _finish(state: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    rest, dull, zeros, count = state
    factors = tl.sum(zeros.to(tl.int64), axis=1), tl.sum(count.to(tl.int64), axis=1)
    return tl.reduce(rest, 1, _times), tl.sum(dull, axis=1), factors[0], factors[1]


_PRODUCT = Accumulator(_start, _step, _finish)
