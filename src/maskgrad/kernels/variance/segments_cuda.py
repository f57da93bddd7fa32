r"""Mean and variance of each segment of a list of entries: each segment is read where it lies, for a variance twice.

.. math:: \bar x_k = \frac{1}{n_k} \sum_{i \in k} x_i, \qquad
          v_k = \frac{\sum_{i \in k} (x_i - \bar x_k)^2}{\max(0, n_k - c)}, \qquad
          \frac{\partial v_k}{\partial x_i} = \frac{2 (x_i - \bar x_k)}{n_k - c}

Two passes, so that a large mean costs no digits; everything is added in float64. Lanes are as in ``segments.py``.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.segments.cuda import merged, places_of, walk_segments
from maskgrad.kernels.variance import segments as family


def segment_mean(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    if not values.numel():
        return family.segment_mean.reference(values, pointers, order)
    # Where a segment is empty the kernel divides by 0.
    mean = merged(values, pointers, order, "mean", torch.promote_types(values.dtype, torch.float32))
    empty = (pointers.diff() == 0).view(-1, *(1,) * (values.ndim - 1))
    return mean.masked_fill_(empty, 0)


def segment_variance(
    values: Tensor, pointers: Tensor, order: Tensor | None, correction: float
) -> tuple[Tensor, Tensor]:
    if not values.numel():
        return family.segment_variance.reference(values, pointers, order, correction)
    values = values.detach().contiguous()
    half = values.dtype in HALVES
    squares, mean = (
        values.new_empty((len(pointers) - 1, *values.shape[1:]), dtype=torch.float64) for _ in range(2)
    )
    walk_segments(_moments, values, pointers, order, len(values), (values, squares, mean))
    number = pointers.diff().double().view(-1, *(1,) * (values.ndim - 1))
    variance = squares / torch.where(number > max(correction, 0), number - correction, 1)
    return variance.to(torch.float32 if half else values.dtype), mean.float() if half else mean


def segment_variance_backward(
    grad: Tensor, values: Tensor, mean: Tensor, pointers: Tensor, order: Tensor | None, correction: float
) -> Tensor:
    """As in the reference: one pass that writes the result."""
    values = values.detach().contiguous()
    out = torch.empty_like(values)
    if out.numel():
        number = pointers.diff().double().view(-1, *(1,) * (grad.ndim - 1))
        enough = number > max(correction, 0)
        share = (2 * grad.detach() / torch.where(enough, number - correction, 1)).contiguous()
        mean = mean.detach().double().contiguous()
        walk_segments(_backward, values, pointers, order, len(values), (values, share, mean, out))
        out = family.without_estimates_of_few(out, enough, pointers, order)
    return out


@compiled
def _moments(
    values: tl.tensor, squares: tl.tensor, mean: tl.tensor, pointers: tl.tensor, order: tl.tensor, number: tl.tensor,
    width: tl.tensor, ORDERED: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    """The sum of squared deviations, and the mean; 0 of nothing."""
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    longest = tl.max(stop - start, axis=0)
    total = tl.zeros((LANES, STEP), tl.float64)
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        total += tl.load(values + place, mask=inside, other=0).to(tl.float64)
    average = tl.sum(total, axis=1) / tl.maximum(stop - start, 1).to(tl.float64)
    added = tl.zeros((LANES, STEP), tl.float64)
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        apart = tl.load(values + place, mask=inside, other=0).to(tl.float64) - average[:, None]
        added += tl.where(inside, apart * apart, 0)
    tl.store(mean + lane, average, mask=lane < number)
    tl.store(squares + lane, tl.sum(added, axis=1), mask=lane < number)


@compiled
def _backward(
    values: tl.tensor, share: tl.tensor, mean: tl.tensor, out: tl.tensor, pointers: tl.tensor, order: tl.tensor,
    number: tl.tensor, width: tl.tensor, ORDERED: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr,
    STEP: tl.constexpr,
) -> None:  # fmt: skip
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    factor = tl.load(share + lane, mask=lane < number, other=0)[:, None]
    average = tl.load(mean + lane, mask=lane < number, other=0)[:, None]
    for done in range(0, tl.max(stop - start, axis=0), STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        v = tl.load(values + place, mask=inside, other=0).to(tl.float64)
        result = factor * (v - average)
        if out.dtype.element_ty == tl.float16 or out.dtype.element_ty == tl.bfloat16:
            result = result.to(tl.float32)
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)
