"""Batches of any form: the tensors in them by key, and the same batch with others in their place."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from maskgrad.masked_tensor import MaskedTensor, masked

__all__ = [
    "LEAVES",
    "Key",
    "applied",
    "fields",
    "parts",
    "ragged",
    "replaced",
    "tensor_of",
    "with_own_memory",
    "with_parts",
]

Key = Hashable
LEAVES = (Tensor, MaskedTensor, PackedSequence)


def fields(batch: Any) -> dict[Key, Tensor | MaskedTensor]:
    """The tensors of a batch that may be padded, by key: names of a mapping or dataclass, positions of a tuple or list.

    A batch that is a tensor has the key 0. What lies deeper has the keys on its way, joined by dots.
    """
    return {key: leaf for key, leaf in _leaves(batch).items() if not _is_ragged(leaf)}


def ragged(batch: Any) -> dict[Key, Any]:
    """What holds samples of different lengths one after the other, and no padding: jagged, nested, packed."""
    return {key: leaf for key, leaf in _leaves(batch).items() if _is_ragged(leaf)}


def _is_ragged(leaf: Any) -> bool:
    if isinstance(leaf, MaskedTensor):
        return leaf.layout is torch.jagged
    return isinstance(leaf, PackedSequence) or bool(leaf.is_nested)


def _leaves(batch: Any) -> dict[Key, Any]:
    if isinstance(batch, LEAVES):
        return {0: batch}
    found: dict[Key, Any] = {}
    for key, part in parts(batch):
        if isinstance(part, LEAVES):
            found[key] = part
        else:
            for deeper, leaf in _leaves(part).items():
                found[f"{key}.{deeper}"] = leaf
    return found


def replaced(batch: Any, new: Mapping[Key, Any], *, above: str = "") -> Any:
    """The batch with the tensors at the keys of ``new`` replaced; everything else is shared."""
    if isinstance(batch, LEAVES):
        return new.get(0, batch)
    changed: dict[Any, Any] = {}
    for key, part in parts(batch):
        place: Key = f"{above}{key}" if above else key
        if isinstance(part, LEAVES):
            if place in new:
                changed[key] = new[place]
        else:
            other = replaced(part, new, above=f"{place}.")
            if other is not part:
                changed[key] = other
    return with_parts(batch, changed) if changed else batch


def with_own_memory(batch: Any) -> Any:
    """The batch with a copy of each tensor that shares memory: entries of one, or of several, could not differ."""
    plain = {
        key: held for key, held in fields(batch).items() if isinstance(held, Tensor) and held.layout is torch.strided
    }  # fmt: skip
    parts_of: dict[int, set[Any]] = {}
    for held in plain.values():
        part = (held.storage_offset(), held.shape, held.stride())
        parts_of.setdefault(held.untyped_storage()._cdata, set()).add(part)
    copies = {
        key: applied(held, torch.clone)
        for key, held in plain.items()
        if len(parts_of[held.untyped_storage()._cdata]) > 1
        or any(stride == 0 and size > 1 for size, stride in zip(held.shape, held.stride(), strict=True))
    }
    return replaced(batch, copies) if copies else batch


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


def parts(batch: Any) -> list[tuple[Any, Any]]:
    """What a container of a batch holds, by key."""
    if isinstance(batch, Mapping):
        return list(batch.items())
    if isinstance(batch, (tuple, list)):
        return list(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return [(field.name, getattr(batch, field.name)) for field in dataclasses.fields(batch)]
    return []


def with_parts(batch: Any, changed: dict[Any, Any]) -> Any:
    """A container with some of its parts replaced."""
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
