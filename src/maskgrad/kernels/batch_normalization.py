"""Standardizing groups that lie across the tensor: which body runs, and the derivatives of any order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.composite import through
from maskgrad.kernels.kernel import FLOATS, Kernel
from maskgrad.kernels.reference import batch_normalization as reference
from maskgrad.kernels.reference.batch_normalization import summed_to
from maskgrad.kernels.selection import compiled, runs_compiled

__all__ = ["KERNELS", "masked_batch_norm"]


def masked_batch_norm(
    values: Tensor,
    mask: Tensor,
    dim: tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Entries less the mean of their group, by its deviation, times ``weight`` plus ``bias``; 0 where unspecified.

    A group is what ``dim`` spans; ``weight`` and ``bias`` have as many dimensions as the values. With the result come
    mean, variance (uncorrected), reciprocal deviation (all without a gradient) and number, dimensions kept.
    """
    check_mask(values, mask)
    if runs_compiled("masked_batch_norm", values, mask, weight, bias):
        return compiled("masked_batch_norm", values, mask, dim, weight, bias, eps)  # type: ignore[no-any-return]
    return reference.masked_batch_norm(values, mask, dim, weight, bias, eps)


def _backward(grad: Tensor, values: Tensor, mask: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Backward passes may run under transforms that forward ones did not, so the body is chosen anew."""
    tensors = [x for x in rest if isinstance(x, Tensor)]
    if runs_compiled("masked_batch_norm_backward", values, grad, mask, *tensors):
        return compiled("masked_batch_norm_backward", grad, values, mask, *rest)  # type: ignore[no-any-return]
    return reference.masked_batch_norm_backward(grad, values, mask, *rest)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    values, mask, ctx.dim, weight, bias, ctx.eps = inputs
    _, mean, _, scale, count = output
    ctx.mark_non_differentiable(*output[1:])
    ctx.bias = None if bias is None else (bias.shape, bias.dtype)
    ctx.save_for_backward(values, mask, mean, scale, count, weight)


def _norm_backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, weight = ctx.saved_tensors
    shapes = [
        x for x in (None if weight is None else weight.shape, ctx.bias and ctx.bias[0]) if x is not None
    ]
    level = list(torch.broadcast_shapes(tensors[-1].shape, *shapes))
    of_values, of_weight, of_bias = _backward(grad, *tensors, ctx.dim, weight, level, ctx.eps)
    return (
        of_values, None, None, None if weight is None else summed_to(of_weight, weight.shape).to(weight.dtype),
        None if ctx.bias is None else summed_to(of_bias, ctx.bias[0]).to(ctx.bias[1]), None,
    )  # fmt: skip


# Measured on 2 cores, in microseconds, reference / compiled: batch_norm over dim 0 of 16,384 values 66 / 138, of 65,536
# 486 / 157.
KERNELS = (
    Kernel(
        "masked_batch_norm", "batch_normalization",
        "(Tensor values, Tensor mask, int[] dim, Tensor? weight, Tensor? bias, float eps)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        FLOATS, 32_768, "standardized groups, with the mean, variance, scale and number of their entries",
        backward=_norm_backward, save=_save,
    ),
    Kernel(
        "masked_batch_norm_backward", "batch_normalization",
        "(Tensor grad, Tensor values, Tensor mask, Tensor mean, Tensor scale, Tensor count, int[] dim, Tensor? weight,"
        " SymInt[] level, float eps) -> (Tensor, Tensor, Tensor)",
        FLOATS, 32_768, "its derivative", leading=1, **through(reference.masked_batch_norm_backward),
    ),
)  # fmt: skip
