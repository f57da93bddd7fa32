"""Checks whether values of a tensor may be read."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.selection import can_read_values, is_eager, is_plain, is_transformed

__all__ = ["can_read_values", "forward_mode_is_active", "forward_only", "is_eager", "is_plain"]


def forward_only(*values: Tensor) -> bool:
    """Return whether no derivative of these is recorded, neither eagerly nor by tracing: none can become NaN."""
    # first, because the rest cannot be traced
    if torch.compiler.is_compiling() or is_transformed():
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in values))


def forward_mode_is_active() -> bool:
    """Return whether forward-mode tangents may be present; False while a graph is being traced."""
    return not torch.compiler.is_compiling() and torch.autograd.forward_ad._current_level >= 0
