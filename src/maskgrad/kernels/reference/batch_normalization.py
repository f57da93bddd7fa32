r"""Standardizing groups that lie across the tensor (a channel of a batch, of a sample), in ordinary PyTorch.

.. math:: y = (x - \bar x) s w + b, \qquad s = \Bigl(\frac1n \sum (x - \bar x)^2 + \varepsilon\Bigr)^{-1/2}

.. math:: \frac{\partial L}{\partial x} = s h - \frac sn \sum h - \frac{s^3}{n} (x - \bar x) \sum h (x - \bar x), \qquad
          h = w \frac{\partial L}{\partial y}

Sums run over the specified entries of a group, which ``dim`` spans. Weight and bias have as many dimensions as the
values, and size 1 where they are constant.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.reference.reductions import HALVES

__all__ = ["masked_batch_norm", "masked_batch_norm_backward", "summed_to"]


def masked_batch_norm(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The result (0 where unspecified); mean, variance, scale (without a gradient) and number of each group."""
    deviation, mean, variance, scale, count = _deviation(values, mask, tuple(dim), eps)
    out = deviation * scale
    if weight is not None:
        out = torch.where(mask, out, 0) * weight
    if bias is not None:
        out = out + bias
    out = torch.where(mask, out, 0).to(values.dtype)
    return out, mean.detach(), variance.detach(), scale.detach(), count


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

    The latter two have the shape ``level``, that of statistics, weight and bias together. ``mean`` and ``scale`` spare
    the compiled body a pass. Here they are computed again: they depend on the values.
    """
    dim = tuple(dim)
    deviation, _, _, scale, _ = _deviation(values, mask, dim, eps)
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


def _deviation(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Specified entries less their mean, 0 elsewhere; mean, variance, scale and number."""
    safe = torch.where(mask, values.float() if values.dtype in HALVES else values, 0)
    count = _sum(mask.to(torch.int64), dim)
    number = count.clamp(min=1)
    mean = _sum(safe, dim) / number
    deviation = torch.where(mask, safe - mean, 0)
    variance = _sum(deviation * deviation, dim) / number
    # A group of nothing has the variance 0, and eps may be 0.
    return deviation, mean, variance, torch.rsqrt(torch.where(count > 0, variance + eps, 1)), count
