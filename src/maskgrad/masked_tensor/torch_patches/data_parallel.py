"""What DistributedDataParallel looks for: tensors in outputs, by their type, and buffers that it can send."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.exchange import exchange
from maskgrad.patterns import BooleanPattern

__all__ = ["install_buffers", "install_outputs", "memory_of"]


def memory_of(tensors: Iterable[Tensor | MaskedTensor]) -> list[Tensor]:
    """The tensors, with values and mask in the place of a MaskedTensor: its own memory, which may be written.

    Raises:
        UnsupportedOperationError: one has a sparse or jagged layout, of which ranks may store different numbers.
    """
    found: list[Tensor] = []
    for tensor in tensors:
        if not isinstance(tensor, MaskedTensor):
            found.append(tensor)
        elif isinstance(tensor._pattern, BooleanPattern):
            found += [_once(tensor._values.detach()), _once(tensor._pattern.mask)]
        else:
            raise UnsupportedOperationError(
                "DistributedDataParallel",
                f"a buffer of layout {tensor.layout} may have other numbers of entries on other ranks",
                "Register it with a Boolean mask, x.to_dense(), or pass broadcast_buffers=False and init_sync=False.",
            )
    return found


def _once(tensor: Tensor) -> Tensor:
    """Each place in memory once: of what is expanded, one of its slices."""
    for dim in reversed(range(tensor.dim())):
        if not tensor.stride(dim) and tensor.shape[dim] > 1:
            tensor = tensor.select(dim, 0)
    return tensor


def _found_in_outputs(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def find_tensors(obj: Any) -> Any:
        return [obj._values] if isinstance(obj, MaskedTensor) else original(obj)

    return find_tensors


def _sent(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sync_params_and_buffers(process_group: Any, module_states: Any, *args: Any, **kwargs: Any) -> Any:
        return original(process_group, memory_of(module_states), *args, **kwargs)

    return sync_params_and_buffers


def _listed(original: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(original)
    def assign_modules_buffers(self: Any) -> None:
        original(self)
        self.modules_buffers = memory_of(self.modules_buffers)
        for name, buffer in list(self.named_module_buffers.items()):
            if isinstance(buffer, MaskedTensor):  # what a hook for buffers is given
                del self.named_module_buffers[name]
                parts = zip(("values", "mask"), memory_of([buffer]), strict=True)
                self.named_module_buffers |= {f"{name}.{part}": tensor for part, tensor in parts}

    return assign_modules_buffers


def install_outputs() -> None:
    """With ``find_unused_parameters=True`` the graph is searched from the values of what is masked."""
    exchange("torch.nn.parallel.distributed._find_tensors", _found_in_outputs)


def install_buffers() -> None:
    """Buffers that are MaskedTensors are sent as values and mask."""
    exchange("torch.distributed.utils._sync_params_and_buffers", _sent)
    exchange("torch.nn.parallel.distributed.DistributedDataParallel._assign_modules_buffers", _listed)
