"""Variances of the specified entries: which body runs, and the derivatives of any order."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.composite import through
from maskgrad.kernels.kernel import FLOATS, Kernel
from maskgrad.kernels.reductions import kept
from maskgrad.kernels.reference import moments as reference
from maskgrad.kernels.selection import compiled, runs_compiled

__all__ = ["KERNELS", "masked_variance"]


def masked_variance(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, correction: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Variance, mean (without a gradient) and number (int64) of the specified entries; 0 where there is none.

    The statistics of halves are float32.
    """
    check_mask(values, mask)
    if runs_compiled("masked_variance", values, mask):
        return compiled("masked_variance", values, mask, dim, keepdim, correction)  # type: ignore[no-any-return]
    return reference.masked_variance(values, mask, dim, keepdim, correction)


def _backward(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    mean: Tensor,
    count: Tensor,
    dim: tuple[int, ...],
    correction: float,
) -> Tensor:
    """Backward passes may run under transforms that forward ones did not, so the body is chosen anew."""
    arguments = grad, values, mask, mean, count, dim, correction
    if runs_compiled("masked_variance_backward", values, *arguments[:5]):
        return compiled("masked_variance_backward", *arguments)  # type: ignore[no-any-return]
    return reference.masked_variance_backward(*arguments)


def _save_variance(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    values, mask, ctx.dim, ctx.keepdim, ctx.correction = inputs
    _, mean, count = output
    ctx.mark_non_differentiable(mean, count)
    ctx.save_for_backward(values, mask, mean, count)


def _variance_backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    values, mask, *statistics = ctx.saved_tensors
    grad, mean, count = (kept(x, mask.ndim, ctx.dim, ctx.keepdim) for x in (grad, *statistics))
    found = _backward(grad, values, mask, mean, count, tuple(ctx.dim), ctx.correction)
    return found, None, None, None, None


# Measured on 2 cores, in microseconds, reference / compiled, variance over dim 1: of 8,192 values 40 / 50, of 16,384
# 61 / 53, with its gradient 139 / 257, of 65,536 776 / 480.
KERNELS = (
    Kernel(
        "masked_variance", "moments",
        "(Tensor values, Tensor mask, int[] dim, bool keepdim, float correction) -> (Tensor, Tensor, Tensor)",
        FLOATS, 32_768, "variance, mean and number of the specified entries",
        backward=_variance_backward, save=_save_variance,
    ),
    Kernel(
        "masked_variance_backward", "moments",
        "(Tensor grad, Tensor values, Tensor mask, Tensor mean, Tensor count, int[] dim, float correction) -> Tensor",
        FLOATS, 32_768, "its derivative", leading=1, **through(reference.masked_variance_backward),
    ),
)  # fmt: skip
