"""The tensors in sight when a model is called: its arguments, and variables of the functions that wait for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from torch import Tensor, nn

from maskgrad.doctor.batches import Key, fields
from maskgrad.doctor.frames import is_users
from maskgrad.doctor.operations import key_of

__all__ = ["Variables", "mask_in"]

#: a variable may be a batch, and not a list of all data
_FEW = 64


class Variables:
    """What a program may have made a batch of; of a tensor and a part of it, such as ``ids[:, :-1]``, the tensor.

    Attributes:
        tensors: the tensors by name, those of the arguments first.
    """

    def __init__(self, arguments: Mapping[Key, Any]) -> None:
        self.tensors: dict[Key, Tensor] = {}
        #: a part, the key of the tensor that it is of, the axis, its first position, and how many positions it lacks
        self._parts: list[tuple[Tensor, Key, int, int, int]] = []
        seen = [*_tensors(arguments), *_of_functions(sys._getframe(1))]
        for key, tensor in seen:
            wholes = [(name, other, *at) for name, other in seen if (at := _place(tensor, other)) is not None]
            if wholes:
                name, whole, axis, start = max(wholes, key=lambda found: found[1].numel())
                self._parts.append((tensor, name, axis, start, whole.shape[axis] - tensor.shape[axis]))
            elif not any(tensor is other for other in self.tensors.values()):
                self.tensors.setdefault(key, tensor)

    def put(self, new: Mapping[Key, Tensor]) -> None:
        """Let the tensors themselves hold others, for whoever has them."""
        for key, tensor in self.tensors.items():
            if new[key] is not tensor:
                tensor.data = new[key].detach()
        for part, key, axis, start, missing in self._parts:
            part.data = new[key].detach().narrow(axis, start, new[key].shape[axis] - missing)


def _of_functions(frame: FrameType | None) -> Iterator[tuple[Key, Tensor]]:
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            for name, held in list(frame.f_locals.items()):
                yield from ((name if key == 0 else f"{name}.{key}", tensor) for key, tensor in _tensors(held))
        frame = frame.f_back


def _tensors(held: Any) -> Iterator[tuple[Key, Tensor]]:
    """No parameters, and nothing that was computed with them."""
    if isinstance(held, (Mapping, list, tuple)) and len(held) > _FEW:
        return
    for key, tensor in fields(held).items():
        plain = isinstance(tensor, Tensor) and not isinstance(tensor, nn.Parameter)
        if plain and tensor.ndim and tensor.grad_fn is None:
            yield key, tensor


def _place(part: Tensor, whole: Tensor) -> tuple[int, int] | None:
    """The axis and the first position of a tensor that has some positions of another, in its memory; None if not."""
    if key_of(part) is None or key_of(part) != key_of(whole) or part.ndim != whole.ndim or part.ndim < 2:
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
    if (other.shape, other.dtype) == (tensor.shape, tensor.dtype) and bool((other == tensor).all()):
        return mask
    place = _place(tensor, other)
    if place is None or tensor.is_floating_point() or mask.shape != tensor.shape or bool(mask.all()):
        return None
    real = other != tensor[~mask][0]  # the id of padding
    return real if bool((real.narrow(*place, tensor.shape[place[0]]) == mask).all()) else None
