r"""Standardizing groups of entries (a channel of a batch or of a sample), in ordinary PyTorch.

.. math:: y = (x - \bar x) s w + b, \qquad s = \Bigl(\frac1n \sum (x - \bar x)^2 + \varepsilon\Bigr)^{-1/2}

.. math:: \frac{\partial L}{\partial x} = s h - \frac sn \sum h - \frac{s^3}{n} (x - \bar x) \sum h (x - \bar x), \qquad
          h = w \frac{\partial L}{\partial y}

Sums run over the specified entries of a group, which ``dim`` spans. Weight and bias have as many dimensions as the
values, and size 1 where they are constant.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.kernel import FLOATS, HALVES, kernel


@kernel(
    "(Tensor values, Tensor mask, int[] dim, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, "
    "Tensor, Tensor, Tensor)",
    FLOATS,
    fuses=True,
    check=check_mask,
)
def masked_batch_norm(
    values: Tensor,
    mask: Tensor,
    dim: tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Standardize entries over their group, times ``weight`` plus ``bias``; 0 where unspecified.

    A group spans ``dim``; ``weight`` and ``bias`` have as many dimensions as the values. Also returns
    mean, variance (uncorrected), reciprocal deviation (all without a gradient) and count, dimensions kept.
    """
    deviation, mean, variance, scale, count = standardized(values, mask, tuple(dim), eps)
    out = deviation * scale
    if weight is not None:
        out = torch.where(mask, out, 0) * weight
    if bias is not None:
        out = out + bias
    out = torch.where(mask, out, 0).to(values.dtype)
    return out, mean.detach(), variance.detach(), scale.detach(), count


@kernel(
    "(Tensor grad, Tensor values, Tensor mask, Tensor mean, Tensor scale, Tensor count, int[] dim, "
    "Tensor? weight, SymInt[] level, float eps) -> (Tensor, Tensor, Tensor)",
    FLOATS,
    fuses=True,
    leading=1,
)
def masked_batch_norm_backward(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    mean: Tensor,
    scale: Tensor,
    count: Tensor,
    dim: tuple[int, ...],
    weight: Tensor | None,
    level: list[int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the values, and those of weight and bias before they are summed to their shape.

    The latter two have the shape ``level``, that of statistics, weight and bias together. ``mean`` and ``scale`` save
    the compiled implementation a pass. They are recomputed here, as they depend on the values.
    """
    dim = tuple(dim)
    deviation, _, _, scale, _ = standardized(values, mask, dim, eps)
    grad = torch.where(mask, grad.to(deviation.dtype), 0)
    of_weight = summed_to(grad * torch.where(mask, deviation * scale, 0), level)
    of_bias = summed_to(grad, level)
    inner = grad if weight is None else torch.where(mask, grad * weight, 0)
    number = count.clamp(min=1)
    result = (inner - _sum(inner, dim) / number) * scale
    result = result - deviation * scale**3 * (_sum(inner * deviation, dim) / number)
    return torch.where(mask, result, 0).to(values.dtype), of_weight, of_bias


def summed_to(x: Tensor, shape: list[int] | torch.Size) -> Tensor:
    """``x`` summed over the dimensions that have size 1 in ``shape``."""
    return _sum(x, tuple(d for d, (n, k) in enumerate(zip(x.shape, shape, strict=True)) if n != k))


def _sum(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    return x.sum(dim, keepdim=True) if dim else x


def standardized(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], eps: float, centered: bool = True
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Specified entries less their mean (0 unless ``centered``), 0 elsewhere; mean, variance, scale and count."""
    deviation = torch.where(mask, values.float() if values.dtype in HALVES else values, 0)
    count = _sum(mask.to(torch.int64), dim)
    number = count.clamp(min=1)
    mean = torch.zeros_like(count, dtype=deviation.dtype)
    if centered:
        mean = _sum(deviation, dim) / number
        deviation = torch.where(mask, deviation - mean, 0)
    variance = _sum(deviation * deviation, dim) / number
    # An empty group has variance 0, and eps may be 0.
    return deviation, mean, variance, torch.rsqrt(torch.where(count > 0, variance + eps, 1)), count


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
    arguments: tuple[Any, ...] = (grad, *tensors, ctx.dim, weight, level, ctx.eps)
    of_values, of_weight, of_bias = masked_batch_norm_backward(*arguments)
    return (
        of_values, None, None, None if weight is None else summed_to(of_weight, weight.shape).to(weight.dtype),
        None if ctx.bias is None else summed_to(of_bias, ctx.bias[0]).to(ctx.bias[1]), None,
    )  # fmt: skip


masked_batch_norm.derive(_save, _norm_backward)
masked_batch_norm_backward.derive_through_reference()
