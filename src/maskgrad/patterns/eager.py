"""Whether the numbers in a tensor may be looked at without harm."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.selection import can_read_values, is_eager, is_plain, is_transformed

__all__ = ["can_read_values", "forward_mode_is_active", "forward_only", "is_eager", "is_plain"]


def forward_only(*values: Tensor) -> bool:
    """True where no derivative of these is recorded, neither now nor by someone who traces: none can become NaN."""
    # first, because what follows cannot be traced
    if torch.compiler.is_compiling() or is_transformed():
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in values))


def forward_mode_is_active() -> bool:
    """Whether tangents may be travelling along; never said while a graph is being traced."""
    return not torch.compiler.is_compiling() and torch.autograd.forward_ad._current_level >= 0
