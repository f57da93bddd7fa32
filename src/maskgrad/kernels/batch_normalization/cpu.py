r"""Standardizing groups of entries: two passes forward, two backward, and a few scalars per group.

.. math:: \frac{\partial L}{\partial x} = w s\,g + (x - \bar x)\,d + o, \qquad
          d = -\frac{s^3}{n} \sum w g (x - \bar x), \quad o = -\frac sn \sum w g

For each entry that is a line forward, and backward two sums, of :math:`g` and :math:`g (x - \bar x)`, and the line
above.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskgrad.kernels import batch_normalization as family
from maskgrad.kernels.cpu.lines import blend, line, pair_sums
from maskgrad.kernels.reductions.cpu import masked_count
from maskgrad.kernels.variance.cpu import masked_variance

Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Three = tuple[Tensor, Tensor, Tensor]


def masked_batch_norm(
    values: Tensor,
    mask: Tensor,
    dim: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Five:
    variance, mean, count = masked_variance(values, mask, dim, True, 0.0)
    # An empty group has variance 0, and eps may be 0.
    scale = torch.rsqrt(torch.where(count > 0, variance + eps, 1))
    return line(values, mask, mean, scale, weight, bias), mean, variance, scale, count


def masked_batch_norm_backward(
    grad: Tensor, values: Tensor, mask: Tensor, mean: Tensor, scale: Tensor, count: Tensor, dim: Sequence[int],
    weight: Tensor | None, level: Sequence[int], eps: float,
) -> Three:  # fmt: skip
    inner = [d for d, (n, k) in enumerate(zip(values.shape, level, strict=True)) if n != k]
    if not inner:
        return family.masked_batch_norm_backward.reference(
            grad, values, mask, mean, scale, count, tuple(dim), weight, list(level), eps
        )
    mean, scale = mean.detach(), scale.detach()
    of_bias, products = pair_sums(grad, values, mask, mean, inner)
    factor = torch.ones_like(scale) if weight is None else weight.detach().to(scale.dtype)
    of_weight = products * scale
    if list(level) != list(mean.shape):  # a channel without entries in a group with some: 0 * inf must give 0
        present = masked_count(mask, inner, True) > 0
        of_weight, factor = torch.where(present, of_weight, 0), torch.where(present, factor, 0)
    # From the shape of the parameters to that of the groups, never back: these tensors are small.
    number = count.clamp(min=1)
    rest = [d % values.ndim for d in dim]
    slope = -(scale**3) * ((products * factor).sum(rest, keepdim=True) / number)
    offset = -scale * ((of_bias * factor).sum(rest, keepdim=True) / number)
    result = blend(grad, values, mask, mean, scale, None if weight is None else factor, slope, offset)
    return result, of_weight, of_bias
