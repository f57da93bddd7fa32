r"""Variances of the specified entries: their mean in float64, then the sums of differences and of their squares.

The difference to the mean is rounded to float64, so that a large mean costs no digits, and squares beyond float32 are
no infinities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import formula
from maskgrad.kernels.cpu.sums import pair_loops, sums_of_pairs, wide
from maskgrad.kernels.reductions import kept
from maskgrad.kernels.reductions.cpu import masked_mean
from maskgrad.kernels.variance import degrees


def masked_variance(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, correction: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    mean, count = masked_mean(values, mask, dim, keepdim, torch.float64)
    rest, squares = _moments(values, mask, mean, dim, keepdim)
    if values.dtype == torch.float64:
        # Corrected by the differences: the mean of equal entries is then exact, and the variance 0.
        rest = rest / count.clamp(min=1)
        mean = torch.where(rest.isfinite(), mean + rest, mean)
        _, squares = _moments(values, mask, mean, dim, keepdim)
    variance = squares / degrees(count, correction, squares.dtype)
    return variance.to(wide(values)), mean.to(wide(values)), count


def _moments(
    values: Tensor, mask: Tensor, mean: Tensor, dim: Sequence[int], keepdim: bool
) -> tuple[Tensor, Tensor]:
    center = kept(mean, values.ndim, tuple(dim), keepdim)
    return sums_of_pairs(_MOMENTS, values, mask, center, dim, keepdim)


@formula
def _difference_and_square(x: Any, mean: Any, n: Any) -> Any:
    difference = x - mean
    return difference, difference * difference


_MOMENTS = pair_loops(_difference_and_square)
