"""MaskedTensors as buffers of DistributedDataParallel: sent as values and mask."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns import BooleanPattern

__all__ = ["REPLICAS", "assign_buffers", "memory_of", "send"]

#: Modules that exchange gradients of replicated parameters: parameters have no reference to them.
REPLICAS: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def send(original: Callable[..., Any], group: Any, states: Any, *args: Any, **kwargs: Any) -> Any:
    """Replace ``_sync_params_and_buffers``: send values and mask of a MaskedTensor."""
    return original(group, memory_of(states), *args, **kwargs)


def assign_buffers(original: Callable[[Any], None], self: Any) -> None:
    """Replace ``DistributedDataParallel._assign_modules_buffers``, also for hooks with buffers by name."""
    original(self)
    REPLICAS.add(self)
    self.modules_buffers = memory_of(self.modules_buffers)
    for name, buffer in list(self.named_module_buffers.items()):
        if isinstance(buffer, MaskedTensor):
            del self.named_module_buffers[name]
            parts = zip(("values", "mask"), memory_of([buffer]), strict=True)
            self.named_module_buffers |= {f"{name}.{part}": tensor for part, tensor in parts}


def memory_of(tensors: Iterable[Tensor | MaskedTensor]) -> list[Tensor]:
    """Return the tensors, with values and mask instead of each MaskedTensor; they share its memory.

    Raises:
        UnsupportedOperationError: a layout is sparse or jagged; ranks may store different numbers of entries.
    """
    found: list[Tensor] = []
    for tensor in tensors:
        if not isinstance(tensor, MaskedTensor):
            found.append(tensor)
        elif isinstance(tensor._pattern, BooleanPattern):
            found += [_once(tensor._values.detach()), _once(tensor._pattern.current)]
        else:
            raise UnsupportedOperationError(
                "DistributedDataParallel",
                f"a buffer of layout {tensor.layout} may have another number of entries on each rank",
                "Register it with a Boolean mask, x.to_dense(), or pass broadcast_buffers=False and init_sync=False.",
            )
    return found


def _once(tensor: Tensor) -> Tensor:
    """Return a view without repeated addresses: one slice of an expanded dimension."""
    for dim in reversed(range(tensor.dim())):
        if not tensor.stride(dim) and tensor.shape[dim] > 1:
            tensor = tensor.select(dim, 0)
    return tensor
