"""What the tests of exported files are given."""

from __future__ import annotations

import torch

import maskgrad as mg


def holey(*shape: int) -> mg.MaskedTensor:
    """NaN under the mask; the first row is complete, the second one empty."""
    mask = torch.rand(shape) > 0.5
    mask[0], mask[1:2] = True, False
    return mg.masked(torch.where(mask, torch.randn(shape), float("nan")), mask)
