"""Means and variances of segments: which body runs, and the derivatives of any order.

Segments are described as in :mod:`maskgrad.kernels.segments`, but may be empty.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from maskgrad.kernels.composite import through
from maskgrad.kernels.kernel import FLOATS, Kernel
from maskgrad.kernels.reference import segment_moments as reference
from maskgrad.kernels.reference.segments import per_segment
from maskgrad.kernels.segments import segment_spread
from maskgrad.kernels.selection import compiled, runs_compiled

__all__ = ["KERNELS", "segment_mean", "segment_variance"]


def segment_mean(values: Tensor, pointers: Tensor, order: Tensor | None = None) -> Tensor:
    """The mean of each segment, (n, *dense) -> (g, *dense), float32 for halves; 0 where it is empty."""
    if runs_compiled("segment_mean", values, pointers, order):
        return compiled("segment_mean", values, pointers, order)  # type: ignore[no-any-return]
    return reference.segment_mean(values, pointers, order)


def segment_variance(
    values: Tensor, pointers: Tensor, order: Tensor | None = None, correction: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Variance and mean (without a gradient) of each segment, (n, *dense) -> (g, *dense); 0 where it is empty.

    The variance of halves is float32; the mean is as exact as it was calculated.
    """
    if runs_compiled("segment_variance", values, pointers, order):
        return compiled("segment_variance", values, pointers, order, float(correction))  # type: ignore[no-any-return]
    return reference.segment_variance(values, pointers, order, correction)


def _backward(
    grad: Tensor, values: Tensor, mean: Tensor, pointers: Tensor, order: Tensor | None, correction: float
) -> Tensor:
    """Backward passes may run under transforms that forward ones did not, so the body is chosen anew."""
    arguments = grad, values, mean, pointers, order, correction
    if runs_compiled("segment_variance_backward", values, grad, mean, pointers, order):
        return compiled("segment_variance_backward", *arguments)  # type: ignore[no-any-return]
    return reference.segment_variance_backward(*arguments)


def _save_mean(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    values, pointers, order = inputs
    ctx.number, ctx.dtype = values.shape[0], values.dtype
    ctx.save_for_backward(pointers, order)


def _mean_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    pointers, order = ctx.saved_tensors
    share = grad / per_segment(pointers, grad).clamp(min=1)
    return segment_spread(share.to(ctx.dtype), pointers, order, ctx.number), None, None


def _save_variance(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, pointers, order, ctx.correction = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(values, output[1], pointers, order)


def _variance_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    values, mean, pointers, order = ctx.saved_tensors
    return _backward(grad, values, mean, pointers, order, ctx.correction), None, None, None


KERNELS = (
    Kernel(
        "segment_mean", "segment_moments", "(Tensor values, Tensor pointers, Tensor? order) -> Tensor", FLOATS, 8_192,
        "mean of each segment", backward=_mean_backward, save=_save_mean,
    ),
    Kernel(
        "segment_variance", "segment_moments",
        "(Tensor values, Tensor pointers, Tensor? order, float correction) -> (Tensor, Tensor)", FLOATS, 8_192,
        "variance and mean of each segment", backward=_variance_backward, save=_save_variance,
    ),
    Kernel(
        "segment_variance_backward", "segment_moments",
        "(Tensor grad, Tensor values, Tensor mean, Tensor pointers, Tensor? order, float correction) -> Tensor",
        FLOATS, 8_192, "its derivative", leading=1, **through(reference.segment_variance_backward),
    ),
)  # fmt: skip
