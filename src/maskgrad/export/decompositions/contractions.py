"""Sums of products that PyTorch's exporter does not know, or writes with a multiplication by zero."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.export.decompositions.views import diagonal

__all__ = ["BODIES"]


def trace(x: Tensor) -> Tensor:
    """The exporter multiplies by an identity matrix, whose zeros do not remove NaN."""
    return diagonal(x).sum()


def conv_tbc(x: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """A convolution whose dimensions come in another order: (time, batch, channels)."""
    moved = torch.conv1d(x.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return moved.permute(2, 0, 1)


BODIES = {"trace": trace, "conv_tbc": conv_tbc}
