"""Samples with garbage under the mask, for tests that compare with what is left when it is deleted."""

from __future__ import annotations

import torch
from torch import Tensor

import maskgrad as mg

__all__ = ["garbage"]


def garbage(
    *shape: int, density: float = 0.6, requires_grad: bool = False
) -> tuple[mg.MaskedTensor, Tensor, Tensor]:
    """A MaskedTensor with NaN, infinities and 1e38 under its mask; its values with zeros there; and the mask."""
    values = torch.randn(shape)
    mask = torch.rand(shape) < density
    mask.view(-1)[:1] = True
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e38])[torch.randint(4, shape)]
    data = torch.where(mask, values, bad)
    return mg.masked(data.requires_grad_(requires_grad), mask), torch.where(mask, values, 0.0), mask
