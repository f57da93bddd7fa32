"""The tensors in sight when a model is called: its arguments, and variables of the functions that wait for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.frames import is_users
from maskgrad.doctor.inferred import same_part
from maskgrad.doctor.operations import key_of
from maskgrad.doctor.padding import Padding

__all__ = ["Variables", "mask_in", "paddings_in"]

#: a variable may be a batch, and not a list of all data
_FEW = 64


class Variables:
    """What a program may have made a batch of; of a tensor and a part of it, such as ``ids[:, :-1]``, the tensor."""

    def __init__(self, arguments: Mapping[Key, Any]) -> None:
        #: by name, those of the arguments first
        self.tensors: dict[Key, Any] = {}
        #: a part, the key of the tensor that it is of, the axis, its first position, and how many positions it lacks
        self._parts: list[tuple[Tensor, Key, int, int, int]] = []
        found: dict[Key, Any] = {}
        for key, held in [*_held(arguments), *_of_functions(sys._getframe(1))]:
            if not any(held is other for other in found.values()):
                name = key
                while name in found:  # another function's variable
                    name = f"{name}'"
                found[name] = held
        for key, tensor in found.items():
            wholes = [(name, other, *at) for name, other in found.items() if (at := _place(tensor, other))]
            if wholes:
                name, whole, axis, start = max(wholes, key=lambda place: place[1].numel())
                self._parts.append((tensor, name, axis, start, whole.shape[axis] - tensor.shape[axis]))
            else:
                self.tensors[key] = tensor

    def put(self, new: Mapping[Key, Any]) -> None:
        """Replace the contents of the tensors in place, for all that refer to them."""
        for key, held in self.tensors.items():
            if new[key] is held:
                continue
            if isinstance(held, Tensor):
                held.data = new[key].detach()
            else:
                held.resize(new[key].shape, refcheck=False)  # nothing else uses it in this process
                held[...] = new[key]
        for part, key, axis, start, missing in self._parts:
            part.data = new[key].detach().narrow(axis, start, new[key].shape[axis] - missing)


def _of_functions(frame: FrameType | None) -> Iterator[tuple[Key, Any]]:
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            for name, held in list(frame.f_locals.items()):
                yield from ((name if key == 0 else f"{name}.{key}", part) for key, part in _held(held))
        frame = frame.f_back


def _held(held: Any) -> Iterator[tuple[Key, Any]]:
    """Tensors and arrays of numbers; no parameters, and nothing that was computed with them."""
    if isinstance(held, np.ndarray):
        held = {0: held}
    if isinstance(held, (Mapping, list, tuple)) and len(held) > _FEW:
        return
    arrays = held.items() if isinstance(held, Mapping) else ()
    yield from ((k, a) for k, a in arrays if isinstance(a, np.ndarray) and a.dtype.kind in "bif" and a.ndim)
    for key, tensor in fields(held).items():
        plain = isinstance(tensor, Tensor) and not isinstance(tensor, nn.Parameter)
        if plain and tensor.ndim and tensor.grad_fn is None:
            yield key, tensor


def _place(part: Any, whole: Any) -> tuple[int, int] | None:
    """The axis and the first position of a tensor that has some positions of another, in its memory; None if not."""
    if not (isinstance(part, Tensor) and isinstance(whole, Tensor)) or key_of(part) is None:
        return None
    if key_of(part) != key_of(whole) or part.ndim != whole.ndim or part.ndim < 2:
        return None
    axes = [axis for axis in range(part.ndim) if part.shape[axis] != whole.shape[axis]]
    if len(axes) != 1 or axes[0] > 1 or part.stride() != whole.stride():
        return None
    (axis,) = axes
    offset = int(part.storage_offset() - whole.storage_offset())
    start, rest = divmod(offset, max(whole.stride(axis), 1))
    return (axis, start) if not rest and 0 <= start <= whole.shape[axis] - part.shape[axis] else None


def mask_in(tensor: Tensor, mask: Tensor, other: Tensor) -> Tensor | None:
    """The mask of a tensor as that of ``other``, which holds the same or has it as a part; None if it has not."""
    if other is tensor:
        return mask
    if other.is_floating_point() != tensor.is_floating_point():
        return None
    if other.shape == tensor.shape and bool((other == tensor).all()):  # ids may be copies of another dtype
        return mask
    if tensor.is_floating_point() or mask.shape != tensor.shape or bool(mask.all()):
        return None
    value = tensor[~mask][0]  # the id of padding
    if same_part(tensor, other) is None or not torch.equal(tensor != value, mask):
        return None
    return other != value


def paddings_in(paddings: list[Padding], held: Any, batch: Any) -> Iterator[Padding]:
    """The paddings of the tensors that ``batch`` has, too, by the keys that they have there."""
    inside, found = fields(held), fields(batch)
    for padding in paddings:
        tensor = tensor_of(inside[padding.key])
        for key, other in found.items():
            mask = mask_in(tensor, padding.mask, tensor_of(other))
            if mask is not None:
                mask_values = {name: value for name, value in padding.mask_values.items() if name in found}
                yield replace(padding, key=key, mask=mask, mask_values=mask_values)
