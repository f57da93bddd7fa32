"""What ``torch.load(weights_only=True)`` may make: MaskedTensors, and what hangs on parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from maskgrad.masked_tensor import tensor

__all__ = ["install", "let_load"]


def let_load(made_by: list[type | Callable[..., Any]]) -> None:
    """Let files hold what these classes or functions make; where PyTorch has no list of them, it refuses such files."""
    register = getattr(torch.serialization, "add_safe_globals", None)
    if register is not None:
        register(made_by)


def install() -> None:
    """Register what a saved MaskedTensor is made with."""
    let_load([tensor.rebuild, tensor.rebuild_stored])
