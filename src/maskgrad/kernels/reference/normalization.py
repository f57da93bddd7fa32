r"""Standardizing the specified entries of each row, in ordinary PyTorch.

.. math:: y_i = (x_i - \bar x) s w_i + b_i, \qquad
          s = \Bigl(\frac1n \sum_{i: m_i} (x_i - \bar x)^2 + \varepsilon\Bigr)^{-1/2}

.. math:: \frac{\partial L}{\partial x_i} = s \Bigl(h_i - \frac1n \sum_j h_j\Bigr)
          - \frac{s^3}{n} (x_i - \bar x) \sum_j h_j (x_j - \bar x), \qquad h_i = w_i \frac{\partial L}{\partial y_i}

A row is what the last ``dims`` dimensions span; sums run over its specified entries. Without ``centered`` the mean
counts as 0 (RMS normalisation).
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.reference.reductions import HALVES

__all__ = ["masked_layer_norm", "masked_layer_norm_backward"]


def masked_layer_norm(
    values: Tensor,
    mask: Tensor,
    dims: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result (0 where unspecified), the mean, the scale (both without a gradient), and the number of each row."""
    deviation, mean, scale, count = _deviation(values, mask, dims, eps, centered)
    out = deviation * scale
    if weight is not None:
        out = torch.where(mask, out, 0) * weight
    if bias is not None:
        out = out + bias
    return torch.where(mask, out, 0).to(values.dtype), mean.detach(), scale.detach(), count


def masked_layer_norm_backward(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    mean: Tensor,
    scale: Tensor,
    count: Tensor,
    dims: int,
    weight: Tensor | None,
    eps: float,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of values, weight and bias (of the latter two in the type of the statistics).

    ``mean`` and ``scale`` spare the compiled body a pass. Here they are computed again: they depend on the values.
    """
    deviation, _, scale, _ = _deviation(values, mask, dims, eps, centered)
    row, batch = tuple(range(-dims, 0)), tuple(range(values.ndim - dims))
    grad = torch.where(mask, grad.to(deviation.dtype), 0)
    of_weight, of_bias = grad * torch.where(mask, deviation * scale, 0), grad
    if batch:
        of_weight, of_bias = of_weight.sum(batch), of_bias.sum(batch)
    inner = grad if weight is None else torch.where(mask, grad * weight, 0)
    number = count.clamp(min=1)
    result = -deviation * scale**3 * ((inner * deviation).sum(row, keepdim=True) / number)
    if centered:
        inner = inner - inner.sum(row, keepdim=True) / number
    return torch.where(mask, result + inner * scale, 0).to(values.dtype), of_weight, of_bias


def _deviation(
    values: Tensor, mask: Tensor, dims: int, eps: float, centered: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Specified entries less their mean, 0 elsewhere; the mean; the scale; and how many there are."""
    row = tuple(range(-dims, 0))
    count = mask.sum(row, keepdim=True)
    number = count.clamp(min=1)
    deviation = torch.where(mask, values.float() if values.dtype in HALVES else values, 0)
    if centered:
        mean = deviation.sum(row, keepdim=True) / number
        deviation = torch.where(mask, deviation - mean, 0)
    else:
        mean = torch.zeros_like(count, dtype=deviation.dtype)
    variance = (deviation * deviation).sum(row, keepdim=True) / number
    # A row of nothing has the variance 0, and eps may be 0.
    return deviation, mean, torch.rsqrt(torch.where(count > 0, variance + eps, 1)), count
