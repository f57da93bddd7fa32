"""Modules replicated by DistributedDataParallel, and their buffers, which it cannot send if they are MaskedTensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["REPLICAS", "assign_buffers", "refuse_masked"]

#: Modules that exchange gradients of replicated parameters: parameters have no reference to them.
REPLICAS: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def assign_buffers(original: Callable[[Any], None], self: Any) -> None:
    """Replace ``DistributedDataParallel._assign_modules_buffers``."""
    original(self)
    refuse_masked(self.modules_buffers)
    REPLICAS.add(self)


def refuse_masked(buffers: Iterable[object]) -> None:
    """Raise an error for a buffer that is a MaskedTensor."""
    if any(isinstance(buffer, MaskedTensor) for buffer in buffers):
        raise UnsupportedOperationError(
            "DistributedDataParallel",
            "it sends buffers that are plain tensors",
            "Register two, self.register_buffer('values', x.filled(0.)) and self.register_buffer('mask', x.mask).",
        )
