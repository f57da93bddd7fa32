r"""Mean, variance, norm, product and logsumexp of segments, made of the kernels of :mod:`maskgrad.kernels.segments`.

.. math:: \bar x_k = \frac{1}{n_k} \sum_{i \in k} x_i, \qquad
          v_k = \frac{\sum_{i \in k} |x_i - \bar x_k|^2}{\max(0, n_k - c)}, \qquad
          \lVert x \rVert_{p, k} = \Bigl(\sum_{i \in k} |x_i|^p\Bigr)^{1/p}
.. math:: P_k = \prod_{i \in k} x_i, \qquad
          \ell_k = \log \sum_{i \in k} e^{x_i} = M_k + \log \sum_{i \in k} e^{x_i - M_k}

with :math:`M_k` the largest entry. The variance takes two passes, so that a large mean costs no digits. Segments and
shapes are those of the kernels, (n, *dense) -> (g, *dense), but a segment may be empty. Results for halves are float32.
Derivatives of any order are those of the steps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.segments import (
    per_segment,
    segment_expand,
    segment_extremum,
    segment_squares,
    segment_sum,
    widened,
)
from maskgrad.kernels.selection import can_read_values, is_eager


def segment_mean(values: Tensor, pointers: Tensor, order: Tensor | None = None) -> Tensor:
    """The mean of each segment; 0 where it is empty."""
    added = segment_sum(values, pointers, order, widened(values.new_empty(0)).dtype)
    dtype = torch.promote_types(values.dtype, torch.float32)
    return (added / per_segment(pointers, added).clamp(min=1)).to(dtype)


def segment_variance(
    values: Tensor, pointers: Tensor, order: Tensor | None = None, correction: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Variance and mean (without a gradient, as exact as it was calculated) of each segment; 0 where it is empty."""
    added = segment_sum(values, pointers, order, widened(values.new_empty(0)).dtype)
    number = per_segment(pointers, added).clamp(min=1)
    mean = added / number
    if values.dtype != torch.float32:
        # Once more, from the differences: of equal entries the mean is then that entry, and the variance 0. The sum of
        # float32 numbers in float64 is exact enough without.
        deviation = widened(values) - segment_expand(mean, pointers, order, len(values))
        rest = segment_sum(deviation, pointers, order) / number
        mean = mean + torch.where(rest.isfinite(), rest, 0)
    center = mean
    few = pointers.diff().reshape(-1, *(1,) * (values.ndim - 1)) <= max(correction, 0)
    if not can_read_values(few) or bool(few.any()):
        # Nothing is estimated there, and there is no gradient: an infinity alone would make one of 0 * (inf - inf).
        spread = segment_expand(few.to(number.dtype), pointers, order, len(values)) != 0
        values, center = values.masked_fill(spread, 0), mean.masked_fill(few, 0)
    squares = segment_squares(values, center, pointers, order)
    variance = squares / torch.where(few, 1, number - correction)
    return variance.to(_result(values.dtype)), mean.detach()


def segment_norm(values: Tensor, pointers: Tensor, order: Tensor | None = None, ord: float = 2.0) -> Tensor:
    """``torch.linalg.vector_norm`` of each segment; 0 where it is empty. ``ord`` is any number, inf and -inf included.

    Order 0 counts what is not zero, inf and -inf are the largest and the smallest size; who attains it shares the
    gradient. At a zero the gradient is 0, as in PyTorch.
    """
    dtype = _result(values.dtype)
    if ord == 2:
        added = segment_squares(values, None, pointers, order)
        flat = added == 0
        return torch.where(flat, 0, torch.where(flat, 1, added).sqrt()).to(dtype)
    size = widened(values).abs()
    if ord in (math.inf, -math.inf):
        return _extreme_size(size, pointers, order, ord > 0).to(dtype)
    if ord == 0:
        return segment_sum((size != 0).to(size.dtype), pointers, order).to(dtype)
    if ord == 1:
        return segment_sum(size, pointers, order).to(dtype)
    # Powers and roots are taken where they have a derivative; elsewhere it is 0, as in torch.
    nothing = size == 0
    neutral = 0.0 if ord > 0 else math.inf
    powers = torch.where(nothing, neutral, torch.where(nothing, 1, size) ** ord)
    added = segment_sum(powers, pointers, order)
    empty = per_segment(pointers, added) == 0
    flat = (added == 0) | added.isinf()
    plain = torch.where(empty, 0, added.detach() ** (1 / ord))
    return torch.where(flat, plain, torch.where(flat, 1, added) ** (1 / ord)).to(dtype)


def _extreme_size(size: Tensor, pointers: Tensor, order: Tensor | None, largest: bool) -> Tensor:
    """The largest or smallest: the exact number, with the gradient of the mean of those that attain it."""
    best = segment_extremum(size.detach(), pointers, order, largest)
    best = torch.where(per_segment(pointers, best) == 0, 0, best)
    forward_mode = not torch.compiler.is_compiling() and torch.autograd.forward_ad._current_level >= 0
    if not (size.requires_grad or forward_mode):
        return best
    winner = segment_expand(best, pointers, order, len(size))
    hit, broken = size.detach() == winner, winner.isnan()
    ties = segment_expand(segment_sum(hit.to(size.dtype), pointers, order), pointers, order, len(size))
    weight = torch.where(broken, 0, 1 / ties.clamp(min=1))
    picked = segment_sum(torch.where(hit | broken, size * weight, 0), pointers, order)
    # An infinite winner has no rounding to correct.
    return torch.where(best.isfinite(), best + (picked - picked.detach()), picked)


def segment_logsumexp(values: Tensor, pointers: Tensor, order: Tensor | None = None) -> Tensor:
    """``torch.logsumexp`` of each segment; -inf where it is empty."""
    wide = values.float() if values.dtype in HALVES else values
    real = wide.real if wide.is_complex() else wide
    best = segment_extremum(real.detach(), pointers, order, True)
    shift = torch.where(best.isfinite(), best, 0)
    powers = (wide - segment_expand(shift, pointers, order, len(values))).exp()
    return segment_sum(powers, pointers, order).log() + shift


def segment_product(values: Tensor, pointers: Tensor, order: Tensor | None = None) -> Tensor:
    """The product of each segment, of integers and Booleans int64; 1 where it is empty.

    By a tree of products of two: zeros are harmless in derivatives of any order.
    """
    if values.dtype in HALVES:
        values = values.float()
    elif not (values.is_floating_point() or values.is_complex()):
        values = values.to(torch.int64)
    if order is not None:
        values = values.index_select(0, order)
    asked = values.requires_grad and torch.is_grad_enabled()
    if values.is_floating_point() and not asked and is_eager():
        return torch.segment_reduce(values, "prod", offsets=pointers, initial=1, unsafe=True)
    counts, number = pointers.diff(), values.shape[0]
    segments = counts.shape[0]
    index = torch.repeat_interleave(counts, output_size=number)
    present = (counts > 0).nonzero().squeeze(1)
    one = torch.ones((), dtype=values.dtype, device=values.device)
    while index.shape[0] > present.shape[0]:
        place = torch.arange(index.shape[0], device=index.device)
        rank = place - (counts.cumsum(0) - counts)[index]
        left = (rank % 2 == 0).nonzero().squeeze(1)
        paired = (rank + 1 < counts[index])[left].reshape(-1, *(1,) * (values.ndim - 1))
        other = values[(left + 1).clamp(max=index.shape[0] - 1)]
        values, index = values[left] * torch.where(paired, other, one), index[left]
        counts = (counts + 1) // 2
    if present.shape[0] == segments:
        return values
    return one.expand(segments, *values.shape[1:]).index_copy(0, present, values)


def _result(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype.to_real() if dtype.is_complex else dtype, torch.float32)
