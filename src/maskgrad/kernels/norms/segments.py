r"""Vector norm of each segment of a list of entries, in ordinary PyTorch.

.. math:: \lVert x \rVert_{p, k} = \Bigl(\sum_{i \in k} |x_i|^p\Bigr)^{1/p}, \qquad
          \frac{\partial \lVert x \rVert_{p, k}}{\partial x_i}
          = \operatorname{sgn} x_i \, |x_i|^{p - 1} \, \lVert x \rVert_{p, k}^{1 - p}

Order 0 counts what is not zero, inf and -inf are the largest and the smallest size; who attains it shares the gradient.
At a zero the gradient is 0, as in PyTorch. The norm of a segment without entries is 0. Segments and shapes are those
of :mod:`maskgrad.kernels.segments`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.kernel import FLOATS, kernel
from maskgrad.kernels.segments import (
    per_segment,
    segment_expand,
    segment_extremum,
    segment_sum,
    widened,
)

__all__ = ["segment_norm", "segment_norm_backward"]


@kernel("(Tensor values, Tensor pointers, Tensor? order, float ord) -> Tensor", FLOATS, min_numel=8_192)
def segment_norm(values: Tensor, pointers: Tensor, order: Tensor | None = None, ord: float = 2.0) -> Tensor:
    """``torch.linalg.vector_norm`` of each segment, (n, *dense) -> (g, *dense); 0 where it is empty.

    ``ord`` is any number, inf and -inf included; the norm of halves is float32.
    """
    wide = widened(values)
    dtype = torch.promote_types(
        values.dtype.to_real() if values.is_complex() else values.dtype, torch.float32
    )
    if ord == 2:
        added = segment_sum.reference(
            (wide * wide.conj()).real if wide.is_complex() else wide * wide, pointers, order
        )
        flat = added == 0
        return torch.where(flat, 0, torch.where(flat, 1, added).sqrt()).to(dtype)
    size = wide.abs()
    if ord in (math.inf, -math.inf):
        return _extreme_size(size, pointers, order, ord > 0).to(dtype)
    if ord == 0:
        return segment_sum.reference((size != 0).to(size.dtype), pointers, order).to(dtype)
    if ord == 1:
        return segment_sum.reference(size, pointers, order).to(dtype)
    # Powers and roots are taken where they have a derivative; elsewhere it is 0, as in torch.
    nothing = size == 0
    neutral = 0.0 if ord > 0 else math.inf
    powers = torch.where(nothing, neutral, torch.where(nothing, 1, size) ** ord)
    added = segment_sum.reference(powers, pointers, order)
    empty = per_segment(pointers, added) == 0
    flat = (added == 0) | added.isinf()
    plain = torch.where(empty, 0, added.detach() ** (1 / ord))
    return torch.where(flat, plain, torch.where(flat, 1, added) ** (1 / ord)).to(dtype)


def _extreme_size(size: Tensor, pointers: Tensor, order: Tensor | None, largest: bool) -> Tensor:
    """The largest or smallest: the exact number, with the gradient of the mean of those that attain it."""
    best = segment_extremum.reference(size.detach(), pointers, order, largest)
    best = torch.where(per_segment(pointers, best) == 0, 0, best)
    forward_mode = not torch.compiler.is_compiling() and torch.autograd.forward_ad._current_level >= 0
    if not (size.requires_grad or forward_mode):
        return best
    winner = segment_expand.reference(best, pointers, order, len(size))
    hit, broken = size.detach() == winner, winner.isnan()
    ties = segment_expand.reference(
        segment_sum.reference(hit.to(size.dtype), pointers, order), pointers, order, len(size)
    )
    weight = torch.where(broken, 0, 1 / ties.clamp(min=1))
    picked = segment_sum.reference(torch.where(hit | broken, size * weight, 0), pointers, order)
    # An infinite winner has no rounding to correct.
    return torch.where(best.isfinite(), best + (picked - picked.detach()), picked)


@kernel(
    "(Tensor grad, Tensor values, Tensor norm, Tensor pointers, Tensor? order, float ord) -> Tensor",
    FLOATS,
    min_numel=8_192,
    leading=1,
)
def segment_norm_backward(
    grad: Tensor, values: Tensor, norm: Tensor, pointers: Tensor, order: Tensor | None, ord: float
) -> Tensor:
    """The gradient of the entries from that of their norm, (n, *dense)."""
    x, g, whole = widened(values), widened(grad), widened(norm)
    number = len(values)
    if ord == 0:
        return torch.zeros_like(values)
    if ord == 1:
        return (x.sgn() * segment_expand.reference(g, pointers, order, number)).to(values.dtype)
    if ord in (math.inf, -math.inf):
        best, size = segment_expand.reference(norm, pointers, order, number), x.abs()
        hit = (size == best) | (size.isnan() & best.isnan())
        ties = segment_sum.reference(hit.to(x.real.dtype), pointers, order).clamp(min=1)
        share = segment_expand.reference(g / ties, pointers, order, number)
        return torch.where(hit, x.sgn() * share, 0).to(values.dtype)
    flat = whole == 0
    if ord == 2:
        slope = torch.where(flat, 0, g / torch.where(flat, 1, whole))
        return (x * segment_expand.reference(slope, pointers, order, number)).to(values.dtype)
    slope = torch.where(flat, 0, g * torch.where(flat, 1, whole) ** (1 - ord))
    size = x.abs()
    nothing = size == 0
    powers = torch.where(nothing, 0, torch.where(nothing, 1, size) ** (ord - 1))
    return (x.sgn() * powers * segment_expand.reference(slope, pointers, order, number)).to(values.dtype)


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, pointers, order, ctx.ord = inputs
    ctx.save_for_backward(values, output, pointers, order)


def _norm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
    if ctx.ord == 0:
        return None, None, None, None
    values, norm, pointers, order = ctx.saved_tensors
    return segment_norm_backward(grad, values, norm, pointers, order, ctx.ord), None, None, None


segment_norm.derive(_save_norm, _norm_backward)
segment_norm_backward.derive_through_reference()
