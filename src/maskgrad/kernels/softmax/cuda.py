r"""Softmax and logsumexp of the specified entries, and of segments: each program handles whole slices.

A slice is read once for the largest entry and the sum of exponentials, and once more for results; it is
still cached. Results on the specified entries are those of PyTorch, NaN included.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.cuda.loops import WRITES, Accumulator, over_segments, power, reduce, write
from maskgrad.kernels.cuda.tiles import restored
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.segments.cuda import (
    POWERS,
    PRODUCTS,
    finish_powers,
    softmax_of,
    softmax_slope,
    start_powers,
    step_powers,
)


def masked_softmax(values: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor:
    out = torch.empty_like(values, requires_grad=False)
    reduce(
        POWERS, mask, (values,), (dim,), (), out=out, of=softmax_of, kind=logarithm, whole=True,
        nothing=float("-inf") if logarithm else 0.0,
    )  # fmt: skip
    return out


def masked_softmax_backward(grad: Tensor, output: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor:
    out = torch.empty_like(output, requires_grad=False)
    reduce(PRODUCTS, mask, (grad, output), (dim,), (), out=out, of=softmax_slope, kind=logarithm, whole=True)
    return out


def masked_logsumexp(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool
) -> tuple[Tensor, Tensor]:
    found, view = reduce(_LOGSUMEXP, mask, (values,), dim, (values.dtype, torch.bool), kind=2, whole=True)
    out, present = (restored(x, view, keepdim) for x in found)
    return out, present


def masked_logsumexp_backward(grad: Tensor, values: Tensor, result: Tensor, mask: Tensor) -> Tensor:
    return write(_share, torch.empty_like(values, requires_grad=False), mask, values, grad, result)


def segment_logsumexp(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    dtype = torch.float32 if values.dtype in HALVES else values.dtype
    return over_segments(_LOGSUMEXP, pointers, order, (values,), (dtype,), kind=2, exact=False)[0]


def segment_logsumexp_backward(
    grad: Tensor, values: Tensor, result: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    out = torch.empty_like(values, requires_grad=False, memory_format=torch.contiguous_format)
    over_segments(WRITES, pointers, order, (values,), few=(grad, result), out=out, of=_share, exact=False)
    return out


@compiled
def _start(ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr) -> tl.tensor:
    """The state of a softmax, and whether there is any entry."""
    best, total = start_powers(ROWS, COLUMNS, KIND, ACC)
    return best, total, tl.zeros((ROWS, COLUMNS), tl.int32)


@compiled
def _step(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr
) -> tl.tensor:
    best, total, some = state
    best, total = step_powers((best, total), there, x, at, n, KIND)
    return best, total, some | there.to(tl.int32)


@compiled
def _finish(state: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    best, total, some = state
    largest, total = finish_powers((best, total), n, KIND)
    return largest + tl.log(total.to(largest.dtype)), tl.max(some, axis=1)


_LOGSUMEXP = Accumulator(_start, _step, _finish)


@compiled
def _share(x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """The gradient of an entry, from that of its row's logsumexp and its value."""
    return power(x[0] - x[2]) * x[1]
