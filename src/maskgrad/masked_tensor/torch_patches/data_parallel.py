"""What DistributedDataParallel, ``fully_shard`` and FullyShardedDataParallel look for by type: tensors, and buffers.

The sharded ones gather the parameters before the backward pass of a module by hooks on its outputs, and reduce the
gradients by a node behind its inputs. A MaskedTensor among them was passed by, and its gradients never reached the
parameters. While they look, a MaskedTensor is a dataclass of its values and its pattern, into which they do look.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.patch import exchange
from maskgrad.patterns import BooleanPattern, Pattern
from maskgrad.versions import is_before

__all__ = [
    "CASTS_OUTPUTS_APART",
    "find_in_outputs",
    "look_into_containers",
    "look_into_fully_shard",
    "memory_of",
    "send_buffers",
]

#: In 2.12 ``_post_forward`` casts outputs itself.
CASTS_OUTPUTS_APART = not is_before(torch.__version__, "2.13")


def _looking_into(first: int) -> Callable[..., Any]:
    """MaskedTensors are taken apart in arguments from ``first`` on, and put together again in the result."""

    def function(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = [_exchanged(a, _apart) if i >= first else a for i, a in enumerate(args)]
        named = {name: _exchanged(value, _apart) for name, value in kwargs.items()}
        return _exchanged(original(*given, **named), _together)

    return function


def look_into_fully_shard() -> None:
    """Let the hooks of ``fully_shard`` look into MaskedTensors."""
    state = "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState"
    exchange(f"{state}._pre_forward", _looking_into(2))
    exchange(f"{state}._post_forward", _looking_into(2))
    if CASTS_OUTPUTS_APART:
        exchange(f"{state}._cast_output_dtype", _looking_into(1))


def look_into_containers() -> None:
    """Let FullyShardedDataParallel look into them: what it goes through inputs and outputs with."""
    exchange("torch.distributed.utils._apply_to_tensors", _looking_into(1))


@dataclasses.dataclass
class Parts:
    """A MaskedTensor taken apart."""

    values: Tensor
    pattern: Held


class Held:
    """A pattern, into which nobody looks."""

    __slots__ = ("pattern",)

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern


def _apart(x: Any) -> Any:
    return Parts(x._values, Held(x._pattern)) if isinstance(x, MaskedTensor) else x


def _together(x: Any) -> Any:
    return MaskedTensor(x.values, x.pattern.pattern) if isinstance(x, Parts) else x


def _exchanged(container: Any, exchange: Callable[[Any], Any]) -> Any:
    """The same container with ``exchange`` of what is in it; itself, where that changes nothing."""
    new = exchange(container)
    if new is not container:
        return new
    if isinstance(container, dict):
        parts = {key: _exchanged(value, exchange) for key, value in container.items()}
        if all(parts[key] is container[key] for key in parts):
            return container
        if type(container) is dict:
            return parts
        copied = container.copy()  # an OrderedDict, the output of a model
        for key, part in parts.items():
            copied[key] = part
        return copied
    if isinstance(container, (list, tuple)):
        listed = [_exchanged(value, exchange) for value in container]
        if all(a is b for a, b in zip(listed, container, strict=True)):
            return container
        return type(container)(*listed) if hasattr(container, "_fields") else type(container)(listed)
    if dataclasses.is_dataclass(container) and not isinstance(container, (type, Parts)):
        names = [f.name for f in dataclasses.fields(container) if f.init and hasattr(container, f.name)]
        changed = {name: _exchanged(getattr(container, name), exchange) for name in names}
        if any(changed[name] is not getattr(container, name) for name in names):
            return dataclasses.replace(container, **changed)
    return container


def find_in_outputs() -> None:
    """With ``find_unused_parameters=True`` the graph is searched from the values of what is masked."""

    def find_tensors(original: Callable[[Any], Any], obj: Any) -> Any:
        return [obj._values] if isinstance(obj, MaskedTensor) else original(obj)

    exchange("torch.nn.parallel.distributed._find_tensors", find_tensors)


def send_buffers() -> None:
    """Buffers that are MaskedTensors are sent as values and mask."""

    def sync(original: Callable[..., Any], group: Any, states: Any, *args: Any, **kwargs: Any) -> Any:
        return original(group, memory_of(states), *args, **kwargs)

    def assign_modules_buffers(original: Callable[[Any], None], self: Any) -> None:
        original(self)
        self.modules_buffers = memory_of(self.modules_buffers)
        for name, buffer in list(self.named_module_buffers.items()):
            if isinstance(buffer, MaskedTensor):  # what a hook for buffers is given
                del self.named_module_buffers[name]
                parts = zip(("values", "mask"), memory_of([buffer]), strict=True)
                self.named_module_buffers |= {f"{name}.{part}": tensor for part, tensor in parts}

    exchange("torch.distributed.utils._sync_params_and_buffers", sync)
    path = "torch.nn.parallel.distributed.DistributedDataParallel._assign_modules_buffers"
    exchange(path, assign_modules_buffers)


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
