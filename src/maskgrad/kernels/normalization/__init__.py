r"""Standardizing the specified entries of each group, in ordinary PyTorch.

.. math:: y = (x - \bar x) s, \qquad s = \Bigl(\frac1n \sum (x - \bar x)^2 + \varepsilon\Bigr)^{-1/2}

A group spans ``dim``: a row, a channel of a batch or of a sample. Sums run over its specified entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.filling import filled
from maskgrad.kernels.invariant import is_invariant, sum_along
from maskgrad.kernels.kernel import FLOATS, HALVES, kernel
from maskgrad.kernels.reductions import masked_count, masked_mean


@kernel(
    "(Tensor values, Tensor mask, int[] dim, float eps, bool centered) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    FLOATS,
    least=None,
    fuses=True,
    check=check_mask,
)
def standardized(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], eps: float, centered: bool = True
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Specified entries less their mean (0 unless ``centered``), times the scale; 0 elsewhere.

    Also mean, variance (uncorrected), scale and number of entries of each group, dimensions kept. Half precision gives
    float32.
    """
    wide, dim = values.float() if values.dtype in HALVES else values, tuple(dim)
    wide = wide.double() if is_invariant() else wide
    if centered:
        mean, count = masked_mean(wide, mask, dim, True)
    else:
        count = masked_count(mask, dim, True)
        mean = torch.zeros_like(count, dtype=wide.dtype)
    # A difference is linear: masked values reach no gradient, and are replaced before any other step.
    deviation = filled(wide - mean if centered else wide, mask, 0)
    square = deviation * deviation
    variance = (sum_along(square, dim) if dim else square) / count.clamp(min=1)
    # An empty group has variance 0, and eps may be 0.
    scale = torch.rsqrt(torch.where(count > 0, variance + eps, 1))
    return filled(deviation * scale, mask, 0), mean, variance, scale, count


standardized.derive_through_reference()
