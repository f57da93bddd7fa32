r"""Mean and variance of each segment of a list of entries, in ordinary PyTorch.

.. math:: \bar x_k = \frac{1}{n_k} \sum_{i \in k} x_i, \qquad
          v_k = \frac{\sum_{i \in k} |x_i - \bar x_k|^2}{\max(0, n_k - c)}, \qquad
          \frac{\partial v_k}{\partial x_i} = \frac{2 (x_i - \bar x_k)}{n_k - c}

Two passes, so that a large mean costs no digits. A segment without entries has variance and mean 0. Segments and
shapes are those of :mod:`maskgrad.kernels.segments`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.kernel import FLOATS, kernel
from maskgrad.kernels.segments import per_segment, segment_expand, segment_sum, widened
from maskgrad.kernels.selection import can_read_values

__all__ = ["segment_mean", "segment_variance", "segment_variance_backward", "without_estimates_of_few"]


@kernel("(Tensor values, Tensor pointers, Tensor? order) -> Tensor", FLOATS, min_numel=8_192)
def segment_mean(values: Tensor, pointers: Tensor, order: Tensor | None = None) -> Tensor:
    """The mean of each segment, (n, *dense) -> (g, *dense), float32 for halves; 0 where it is empty."""
    wide = widened(values)
    mean = segment_sum.reference(wide, pointers, order) / per_segment(pointers, wide).clamp(min=1)
    return mean.to(torch.promote_types(values.dtype, torch.float32))


@kernel(
    "(Tensor values, Tensor pointers, Tensor? order, float correction) -> (Tensor, Tensor)",
    FLOATS,
    min_numel=8_192,
)
def segment_variance(
    values: Tensor, pointers: Tensor, order: Tensor | None = None, correction: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Variance and mean (without a gradient) of each segment, (n, *dense) -> (g, *dense); 0 where it is empty.

    The variance of halves is float32; the mean is as exact as it was calculated.
    """
    wide = widened(values)
    deviation, mean = _deviation(wide, pointers, order)
    squares = (deviation * deviation.conj()).real if wide.is_complex() else deviation * deviation
    number = per_segment(pointers, squares)
    divisor = torch.where(number > max(correction, 0), number - correction, 1)
    variance = segment_sum.reference(squares, pointers, order) / divisor
    dtype = values.dtype.to_real() if values.is_complex() else values.dtype
    return variance.to(torch.promote_types(dtype, torch.float32)), mean.detach()


@kernel(
    "(Tensor grad, Tensor values, Tensor mean, Tensor pointers, Tensor? order, float correction) -> Tensor",
    FLOATS,
    min_numel=8_192,
    leading=1,
)
def segment_variance_backward(
    grad: Tensor, values: Tensor, mean: Tensor, pointers: Tensor, order: Tensor | None, correction: float
) -> Tensor:
    """The gradient of the entries from that of their variance, (n, *dense)."""
    wide = widened(values)
    if torch.is_grad_enabled():  # to be differentiated again: the mean depends on the entries
        deviation, _ = _deviation(wide, pointers, order)
    else:
        deviation = wide - segment_expand.reference(mean, pointers, order, len(values))
    number = per_segment(pointers, grad)
    enough = number > max(correction, 0)
    share = widened(grad) * 2 / torch.where(enough, number - correction, 1)
    found = (deviation * segment_expand.reference(share, pointers, order, len(values))).to(values.dtype)
    return without_estimates_of_few(found, enough, pointers, order)


def without_estimates_of_few(out: Tensor, enough: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    """A gradient in which the entries of a segment without an estimate have none, infinities included."""
    if can_read_values(enough) and bool(enough.all()):
        return out
    spread = segment_expand.reference(
        enough.to(out.dtype).expand(-1, *out.shape[1:]), pointers, order, len(out)
    )
    return torch.where(spread != 0, out, 0)


def _deviation(wide: Tensor, pointers: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor]:
    """Entries less the mean of their segment, and the means."""
    number = per_segment(pointers, wide).clamp(min=1)
    mean = segment_sum.reference(wide, pointers, order) / number
    # Once more, from the differences: of equal entries the mean is then that entry, and the variance 0.
    rest = (
        segment_sum.reference(
            wide - segment_expand.reference(mean, pointers, order, len(wide)), pointers, order
        )
        / number
    )
    mean = mean + torch.where(rest.isfinite(), rest, 0)
    return wide - segment_expand.reference(mean, pointers, order, len(wide)), mean


def _save_mean(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, pointers, order = inputs
    ctx.number, ctx.dtype = values.shape[0], values.dtype
    ctx.save_for_backward(pointers, order)


def _mean_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    pointers, order = ctx.saved_tensors
    share = grad / per_segment(pointers, grad).clamp(min=1)
    return segment_expand(share.to(ctx.dtype), pointers, order, ctx.number), None, None


def _save_variance(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, pointers, order, ctx.correction = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(values, output[1], pointers, order)


def _variance_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    values, mean, pointers, order = ctx.saved_tensors
    return segment_variance_backward(grad, values, mean, pointers, order, ctx.correction), None, None, None


segment_mean.derive(_save_mean, _mean_backward)
segment_variance.derive(_save_variance, _variance_backward)
segment_variance_backward.derive_through_reference()
