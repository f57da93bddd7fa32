r"""Standardizing the specified entries of each row, in ordinary PyTorch.

.. math:: y_i = (x_i - \bar x) s w_i + b_i, \qquad
          s = \Bigl(\frac1n \sum_{i: m_i} (x_i - \bar x)^2 + \varepsilon\Bigr)^{-1/2}

.. math:: \frac{\partial L}{\partial x_i} = s \Bigl(h_i - \frac1n \sum_j h_j\Bigr)
          - \frac{s^3}{n} (x_i - \bar x) \sum_j h_j (x_j - \bar x), \qquad h_i = w_i \frac{\partial L}{\partial y_i}

A row spans the last ``dims`` dimensions; sums run over its specified entries. Without ``centered`` the mean
counts as 0 (RMS normalisation).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.batch_normalization import standardized
from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.kernel import FLOATS, kernel


@kernel(
    "(Tensor values, Tensor mask, int dims, Tensor? weight, Tensor? bias, float eps, bool centered)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    FLOATS,
    fuses=True,
    in_graphs=32_768,
    check=check_mask,
)
def masked_layer_norm(
    values: Tensor,
    mask: Tensor,
    dims: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    centered: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Standardize entries (around 0 unless ``centered``), times ``weight`` plus ``bias``; 0 if unspecified.

    The last ``dims`` dimensions, those of ``weight`` and ``bias``, are standardized together. Also returns the
    mean, the reciprocal deviation (both without a gradient) and the number of entries, dimensions kept.
    """
    deviation, mean, _, scale, count = standardized(values, mask, tuple(range(-dims, 0)), eps, centered)
    out = deviation * scale
    if weight is not None:
        out = torch.where(mask, out, 0) * weight
    if bias is not None:
        out = out + bias
    return torch.where(mask, out, 0).to(values.dtype), mean.detach(), scale.detach(), count


@kernel(
    "(Tensor grad, Tensor values, Tensor mask, Tensor mean, Tensor scale, Tensor count, int dims, "
    "Tensor? weight, float eps, bool centered) -> (Tensor, Tensor, Tensor)",
    FLOATS,
    fuses=True,
    in_graphs=32_768,
    leading=1,
)
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

    ``mean`` and ``scale`` save the compiled implementation a pass; they are recomputed here for their gradients.
    """
    row, batch = tuple(range(-dims, 0)), tuple(range(values.ndim - dims))
    deviation, _, _, scale, _ = standardized(values, mask, row, eps, centered)
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


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    values, mask, ctx.dims, weight, bias, ctx.eps, ctx.centered = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(values, mask, *output[1:], weight)


def _layer_norm_backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, weight = ctx.saved_tensors
    arguments: tuple[Any, ...] = (grad, *tensors, ctx.dims, weight, ctx.eps, ctx.centered)
    of_values, of_weight, of_bias = masked_layer_norm_backward(*arguments)
    return (
        of_values, None, None, None if weight is None else of_weight.to(weight.dtype),
        None if ctx.bias_dtype is None else of_bias.to(ctx.bias_dtype), None, None,
    )  # fmt: skip


masked_layer_norm.derive(_save, _layer_norm_backward)
masked_layer_norm_backward.derive_through_reference()
