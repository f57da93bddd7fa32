r"""Variance, mean and number of the specified entries, in one pass without cancellation.

.. math:: \bar x = c + \frac{1}{n} \sum_i m_i (x_i - c), \qquad
          v = \frac{\sum_i m_i (x_i - c)^2 - n (\bar x - c)^2}{n - \text{correction}}

with :math:`c` a specified entry of the slice, so that the terms have the size of the spread and not of the mean, and
all sums in float64. Long reductions are cut into pieces; the count, mean and squares of pieces are
merged by the rule of Chan, Golub and LeVeque (1979).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels import variance as family
from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.cuda.loops import WRITES, Accumulator, over_segments, reduce, write
from maskgrad.kernels.cuda.tiles import restored
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.segments.cuda import merged


def masked_variance(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, correction: float
) -> tuple[Tensor, Tensor, Tensor]:
    squares, mean, count = central_squares(values, mask, dim, keepdim)
    variance = squares / torch.where(count > max(correction, 0), count - correction, 1)
    dtype = torch.float32 if values.dtype in HALVES else values.dtype
    return variance.to(dtype), mean.to(dtype), count


def central_squares(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, centered: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of the squared distances from the mean (from 0 unless ``centered``), the mean (or 0), and the count.

    The first two are float64.
    """
    results = (torch.float64, torch.float64, torch.int64)
    (squares, mean, count), view = reduce(MOMENTS, mask, (values,), dim, results, kind=centered)
    number = count.sum(1, keepdim=True)
    if count.shape[1] > 1:  # the moments of slices from those of their pieces
        whole = (mean * count).sum(1, keepdim=True) / number.clamp(min=1)
        apart = torch.where(count > 0, mean - whole, 0)
        squares, mean = (squares + count * apart * apart).sum(1), whole
    return restored(squares, view, keepdim), restored(mean, view, keepdim), restored(number, view, keepdim)


def masked_variance_backward(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    mean: Tensor,
    count: Tensor,
    dim: Sequence[int],
    correction: float,
) -> Tensor:
    enough = count > max(correction, 0)
    share = 2 * grad / torch.where(enough, count.to(grad.dtype) - correction, 1)
    out = write(_deviation, torch.empty_like(values, requires_grad=False), mask, values, share, mean)
    return family.without_estimates_of_few(out, enough)


def segment_mean(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    return merged(values, pointers, order, "mean", torch.promote_types(values.dtype, torch.float32))


def segment_variance(
    values: Tensor, pointers: Tensor, order: Tensor | None, correction: float
) -> tuple[Tensor, Tensor]:
    half = values.dtype in HALVES
    squares, mean = over_segments(MOMENTS, pointers, order, (values,), (torch.float64,) * 2, kind=True)
    number = pointers.diff().double().view(-1, *(1,) * (values.ndim - 1))
    variance = squares / torch.where(number > max(correction, 0), number - correction, 1)
    return variance.to(torch.float32 if half else values.dtype), mean.float() if half else mean


def segment_variance_backward(
    grad: Tensor, values: Tensor, mean: Tensor, pointers: Tensor, order: Tensor | None, correction: float
) -> Tensor:
    number = pointers.diff().double().view(-1, *(1,) * (grad.ndim - 1))
    enough = number > max(correction, 0)
    share = 2 * grad / torch.where(enough, number - correction, 1)
    out = torch.empty_like(values, requires_grad=False, memory_format=torch.contiguous_format)
    over_segments(WRITES, pointers, order, (values,), few=(share, mean), out=out, of=_deviation)
    return family.without_estimates_of_short(out, enough, pointers, order)


@compiled
def _deviation(x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    return x[1] * (x[0] - x[2])


@compiled
def _start(ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr) -> tl.tensor:
    """The first specified entry, subtracted by each thread; sums of differences, squares, entries; their number."""
    nothing = tl.zeros((ROWS, COLUMNS), ACC)
    return nothing, nothing, nothing, nothing, tl.zeros((ROWS, COLUMNS), tl.int32)


@compiled
def _step(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, CENTERED: tl.constexpr
) -> tl.tensor:
    origin, total, square, plain, number = state
    v = x[0]
    if CENTERED % 2 == 1:
        origin = tl.where(there & (number == 0), v, origin)
        plain += tl.where(there, v, 0)
    d = tl.where(there, v - origin, 0)
    return origin, total + d, square + d * d, plain, number + there.to(tl.int32)


@compiled
def moments(state: tl.tensor, n: tl.tensor, CENTERED: tl.constexpr) -> tl.tensor:
    """The squares of each row, the mean (0 unless ``CENTERED``), and the number, in float64."""
    origin, total, square, plain, number = state
    n = number.to(tl.float64)
    all_n = tl.sum(n, axis=1)
    if CENTERED % 2 == 1:
        # Mean and squares of each thread, then those of all.
        some = tl.maximum(n, 1.0)
        own = total.to(tl.float64) / some
        spread = square.to(tl.float64) - n * own * own
        own = origin.to(tl.float64) + own
        whole = tl.sum(tl.where(number > 0, n * own, 0), axis=1) / tl.maximum(all_n, 1.0)
        apart = own - whole[:, None]
        joined = tl.sum(tl.where(number > 0, spread + n * apart * apart, 0), axis=1)
        # Differences of infinite entries are NaN, but their mean is needed by the derivative.
        whole = tl.where(whole == whole, whole, tl.sum(plain.to(tl.float64), axis=1) / tl.maximum(all_n, 1.0))
    else:
        joined = tl.sum(square.to(tl.float64), axis=1)
        whole = all_n * 0
    return tl.where(joined < 0, 0, joined), whole, all_n


MOMENTS = Accumulator(_start, _step, moments)
