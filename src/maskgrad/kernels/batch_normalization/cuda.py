r"""Standardizing groups that lie across the tensor: two passes forward, two backward.

.. math:: \frac{\partial L}{\partial x} = w s\,g + (x - \bar x)\,d + o, \qquad
          d = -\frac{s^3}{n} \sum w g (x - \bar x), \quad o = -\frac sn \sum w g

The numbers of a group are few: what remains to be done for each entry is a line forward (:mod:`.lines`), and backward
two sums, of :math:`g` and :math:`g (x - \bar x)`, and the line above. Large groups are cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskgrad.kernels import batch_normalization as family
from maskgrad.kernels.cuda.lines import blend, line, pair_sums
from maskgrad.kernels.reductions.cuda import masked_count
from maskgrad.kernels.variance.cuda import masked_variance


def masked_batch_norm(
    values: Tensor, mask: Tensor, dim: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if not values.numel() or not dim:
        return family.masked_batch_norm.reference(values, mask, tuple(dim), weight, bias, eps)
    variance, mean, count = masked_variance(values, mask, dim, True, 0.0)
    # A group of nothing has the variance 0, and eps may be 0.
    scale = torch.rsqrt(torch.where(count > 0, variance + eps, 1))
    return line(values, mask, mean, scale, weight, bias), mean, variance, scale, count


def masked_batch_norm_backward(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    mean: Tensor,
    scale: Tensor,
    count: Tensor,
    dim: Sequence[int],
    weight: Tensor | None,
    level: Sequence[int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    inner = [d for d, (n, k) in enumerate(zip(values.shape, level, strict=True)) if n != k]
    if not values.numel() or not inner:
        return family.masked_batch_norm_backward.reference(
            grad, values, mask, mean, scale, count, tuple(dim), weight, list(level), eps
        )
    mean, scale = mean.detach(), scale.detach()
    of_bias, products = pair_sums(grad, values, mask, mean, None, inner, both=False)
    factor = torch.ones_like(scale) if weight is None else weight.detach().to(scale.dtype)
    of_weight = products * scale
    if list(level) != list(mean.shape):  # a channel without entries in a group with some: 0 * inf is to be 0
        present = masked_count(mask, inner, True) > 0
        of_weight, factor = torch.where(present, of_weight, 0), torch.where(present, factor, 0)
    # From the level of the parameters to that of the groups, and never back: these tensors are small.
    number = count.clamp(min=1)
    rest = [d % values.ndim for d in dim]
    slope = -(scale**3) * ((products * factor).sum(rest, keepdim=True) / number)
    offset = -scale * ((of_bias * factor).sum(rest, keepdim=True) / number)
    result = blend(grad, values, mask, mean, scale, None if weight is None else factor, slope, offset)
    return result, of_weight, of_bias
