"""What ``fully_shard`` and FullyShardedDataParallel look for in inputs and outputs: tensors, by their type.

They gather the parameters before the backward pass of a module by hooks on its outputs, and reduce the gradients by a
node behind its inputs. A MaskedTensor among them was passed by, and its gradients never reached the parameters. While
they look, a MaskedTensor is a dataclass of its values and its pattern, into which they do look.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.exchange import exchange
from maskgrad.patterns import Pattern

__all__ = ["install_fully_shard", "install_traversal"]


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
        fields = {
            f.name: getattr(container, f.name)
            for f in dataclasses.fields(container)
            if f.init and hasattr(container, f.name)
        }
        changed = {name: _exchanged(value, exchange) for name, value in fields.items()}
        if any(changed[name] is not fields[name] for name in fields):
            return dataclasses.replace(container, **changed)
    return container


def _looking_into(original: Callable[..., Any], first: int) -> Callable[..., Any]:
    """``original`` with MaskedTensors taken apart in its arguments from ``first`` on, and together in its result."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        given = tuple([_exchanged(a, _apart) if i >= first else a for i, a in enumerate(args)])
        named = {name: _exchanged(value, _apart) for name, value in kwargs.items()}
        return _exchanged(original(*given, **named), _together)

    return function


def install_fully_shard() -> None:
    """Let the hooks of ``fully_shard`` look into MaskedTensors."""
    state = "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState"
    exchange(f"{state}._pre_forward", functools.partial(_looking_into, first=2))
    exchange(f"{state}._post_forward", functools.partial(_looking_into, first=2))
    exchange(f"{state}._cast_output_dtype", functools.partial(_looking_into, first=1))


def install_traversal() -> None:
    """Let FullyShardedDataParallel look into them: what it goes through inputs and outputs with."""
    exchange("torch.distributed.utils._apply_to_tensors", functools.partial(_looking_into, first=1))
