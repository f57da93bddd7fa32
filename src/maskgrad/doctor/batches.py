"""Batches of any form: the tensors in them by key, the same batch with others in their place, and as steps take it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Collection, Hashable, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from maskgrad.masked_tensor import MaskedTensor, masked

__all__ = [
    "LEAVES", "Key", "Presented", "applied", "fields", "ragged", "rebuilt", "replaced", "tensor_of",
    "with_own_memory",
]  # fmt: skip

Key = Hashable
LEAVES = (Tensor, MaskedTensor, PackedSequence)
_PLAIN = (Tensor, np.ndarray, str, int, float, type(None))


def rebuilt(batch: Any, function: Callable[[Key, Any], Any], key: Key | None = None) -> Any:
    """The batch with what a function of key and part gives for its parts; what it gives back itself is looked into.

    The keys are names of a mapping or dataclass, positions of a tuple or list. A batch that is a tensor has the key 0.
    What lies deeper has the keys on its way, joined by dots.
    """
    other = function(0 if key is None else key, batch)
    if other is not batch or isinstance(batch, LEAVES):
        return other
    changed = {}
    for name, part in _parts(batch):
        other = rebuilt(part, function, name if key is None else f"{key}.{name}")
        if other is not part:
            changed[name] = other
    return _with_parts(batch, changed) if changed else batch


def fields(batch: Any) -> dict[Key, Tensor | MaskedTensor]:
    """The tensors of a batch that may be padded, by key."""
    return {key: leaf for key, leaf in _leaves(batch).items() if not _is_ragged(leaf)}


def ragged(batch: Any) -> dict[Key, Any]:
    """What holds samples of different lengths one after the other, and no padding: jagged, nested, packed."""
    return {key: leaf for key, leaf in _leaves(batch).items() if _is_ragged(leaf)}


def _is_ragged(leaf: Any) -> bool:
    if isinstance(leaf, MaskedTensor):
        return leaf.layout is torch.jagged
    return isinstance(leaf, PackedSequence) or bool(leaf.is_nested)


def _leaves(batch: Any) -> dict[Key, Any]:
    found: dict[Key, Any] = {}

    def keep(key: Key, part: Any) -> Any:
        found.update({key: part} if isinstance(part, LEAVES) else {})
        return part

    rebuilt(batch, keep)
    return found


def replaced(batch: Any, new: Mapping[Key, Any]) -> Any:
    """The batch with the tensors at the keys of ``new`` replaced; everything else is shared."""
    return rebuilt(batch, lambda key, part: new.get(key, part) if isinstance(part, LEAVES) else part)


def with_own_memory(batch: Any) -> Any:
    """The batch with a copy of each tensor: entries of one, or of several, may share memory, and could not differ."""
    plain = {k: held for k, held in fields(batch).items() if isinstance(held, Tensor)}
    plain = {k: held for k, held in plain.items() if held.layout is torch.strided}
    return replaced(batch, {key: applied(held, torch.clone) for key, held in plain.items()})


def applied(field: Any, function: Callable[[Any], Any]) -> Any:
    """What a function of tensors makes of a field, of the values and the mask of a MaskedTensor; a leaf stays one."""
    if isinstance(field, MaskedTensor) and field.layout is torch.strided:
        return masked(function(field._values.detach()), function(field.mask))
    if isinstance(field, Tensor) and field.requires_grad:
        return function(field.detach()).requires_grad_()
    return function(field)


def tensor_of(field: Tensor | MaskedTensor) -> Tensor:
    """The plain tensor whose memory the field uses."""
    return field._values if isinstance(field, MaskedTensor) else field


def _parts(batch: Any) -> list[tuple[Any, Any]]:
    if isinstance(batch, Mapping):
        return list(batch.items())
    if isinstance(batch, (tuple, list)):
        return list(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return [(field.name, getattr(batch, field.name)) for field in dataclasses.fields(batch)]
    inside = {} if isinstance(batch, nn.Module) else getattr(batch, "__dict__", {})
    held = list(map(type, inside.values())) if type(inside) is dict else []
    # an object that is a batch and nothing else, such as images with their mask
    is_batch = any(issubclass(kind, Tensor) for kind in held) and all(
        issubclass(kind, _PLAIN) for kind in held
    )
    return list(inside.items()) if is_batch else []


def _with_parts(batch: Any, changed: dict[Any, Any]) -> Any:
    if isinstance(batch, MutableMapping):
        other = copy.copy(batch)
        if getattr(other, "data", None) is getattr(batch, "data", other):
            # a mapping of another library that keeps its items in an attribute
            other.data = dict(batch.data)  # type: ignore[attr-defined]
        other.update(changed)
        return other
    if isinstance(batch, Mapping):
        return {**batch, **changed}
    if isinstance(batch, (tuple, list)):
        members = [changed.get(place, part) for place, part in enumerate(batch)]
        return type(batch)(*members) if hasattr(batch, "_fields") else type(batch)(members)
    other = copy.copy(batch)
    for name, part in changed.items():
        object.__setattr__(other, name, part)
    return other


class Presented:
    """The batch that is examined: of tensors only, with the samples along the first axis."""

    def __init__(self, batch: Any) -> None:
        self._original: dict[Key, Callable[[Tensor], Any]] = {}
        #: keys of the tensors of which the axes are exchanged
        self.turned: set[Key] = set()
        self.batch = self._with_tensors(batch)

    def turn(self, keys: Collection[Key]) -> None:
        """Let the second axis of some tensors, that of the samples, be the first."""
        self.turned |= set(keys)
        new = {key: applied(held, _exchanged) for key, held in fields(self.batch).items() if key in keys}
        self.batch = replaced(self.batch, new)

    def as_given(self, batch: Any) -> Any:
        """A batch in the form in which the step takes it."""

        def as_given(key: Key, part: Any) -> Any:
            held = _exchanged(tensor_of(part)) if key in self.turned else part
            return self._original[key](held) if key in self._original else held

        return rebuilt(batch, as_given)

    def _with_tensors(self, batch: Any) -> Any:
        """The batch with arrays, and lists of one number for each sample, as tensors."""
        inside_lists = set[int]()

        def as_tensor(key: Key, part: Any) -> Any:
            if isinstance(part, np.ndarray) and part.dtype.kind in "biuf" and part.dtype.itemsize <= 8:
                self._original[key] = lambda tensor: tensor.detach().numpy().astype(part.dtype, copy=False)
                return torch.from_numpy(np.ascontiguousarray(part)).clone()
            types: set[type] = set(map(type, part)) if type(part) in (list, tuple) else set()
            if types and types <= {int, float} and id(part) not in inside_lists:
                self._original[key] = lambda tensor: type(part)(tensor.tolist())
                return torch.tensor(part, dtype=torch.float64 if float in types else torch.int64)
            inside_lists.update(map(id, part) if types and part is not batch else ())
            return part

        return rebuilt(batch, as_tensor)


def _exchanged(tensor: Tensor) -> Tensor:
    return tensor.transpose(0, 1).contiguous()
