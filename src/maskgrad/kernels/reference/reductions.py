r"""Sums, means and counts over the specified entries, in ordinary PyTorch.

.. math:: \text{sum} = \sum_i m_i x_i, \qquad \text{mean} = \frac{\sum_i m_i x_i}{\max(1, \sum_i m_i)},
          \qquad \frac{\partial\,\text{mean}}{\partial x_i} = \frac{m_i}{\max(1, \sum_i m_i)}

The product :math:`m_i x_i` is a *selection*: what lies under the mask is replaced, never multiplied, because 0 * NaN is
NaN. ``masked_fill`` does so in both directions: its backward fills the gradient, too.

``dim`` lists every reduced dimension; the empty tuple reduces nothing (unlike in ``torch.sum``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.smallest import smallest

HALVES = (torch.float16, torch.bfloat16)


def sum_dtype(values: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of ``torch.sum``: integers and Booleans add up to int64 unless told otherwise."""
    if dtype is not None:
        return dtype
    return values if values.is_floating_point or values.is_complex else torch.int64


def mean_dtype(values: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of ``torch.mean``, which refuses integers (so do we, in its words)."""
    result = values if dtype is None else dtype
    if not (result.is_floating_point or result.is_complex):
        given = "Input dtype" if dtype is None else "Optional dtype"
        raise RuntimeError(
            f"masked_mean(): could not infer output dtype. {given} must be either a floating point or complex dtype. "
            f"Got: {result}; pass dtype=torch.get_default_dtype() to average integers"
        )
    return result


def masked_count(mask: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    """How many entries are specified, as int64."""
    return _sum(mask, dim, keepdim, torch.int64)


def masked_sum(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """The sum of the specified entries (0 where there is none), and their number."""
    out = sum_dtype(values.dtype, dtype)
    kept = values.to(out).masked_fill(smallest(mask).logical_not(), 0)
    return _sum(kept, dim, keepdim, out), masked_count(mask, dim, keepdim)


def masked_mean(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """The mean of the specified entries (0 where there is none, with gradient 0), and their number."""
    out = mean_dtype(values.dtype, dtype)
    # Halves: the sum may overflow where the mean does not, and int64 -> float16 turns a count above 65504 into inf.
    wide = torch.float32 if out in HALVES else out
    total, count = masked_sum(values.to(out), mask, dim, keepdim, wide)
    return (total / count.clamp(min=1)).to(out), count


def masked_spread(grad: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The adjoint of the masked sum: ``grad``, broadcast, where ``mask`` holds; exactly 0 elsewhere."""
    return grad.to(dtype).expand(mask.shape).masked_fill(smallest(mask).logical_not(), 0)


def _sum(x: Tensor, dim: tuple[int, ...], keepdim: bool, dtype: torch.dtype) -> Tensor:
    return torch.sum(x, dim, keepdim, dtype=dtype) if dim else x.to(dtype)
