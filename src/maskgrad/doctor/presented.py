"""A batch as experiments change it, and as its step takes it: with arrays, lists of numbers, positions first."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.doctor.batches import LEAVES, Key, applied, fields, parts, replaced, tensor_of, with_parts

__all__ = ["Presented"]


class Presented:
    """The batch that is examined: of tensors only, with the samples along the first axis.

    Attributes:
        batch: that batch.
        turned: keys of the tensors of which the axes are exchanged.
    """

    def __init__(self, batch: Any) -> None:
        self._original: dict[Key, Callable[[Tensor], Any]] = {}
        self.turned: set[Key] = set()
        self.batch = self._with_tensors(batch)

    def turn(self, keys: Collection[Key]) -> None:
        """Let the second axis of some tensors, that of the samples, be the first."""
        self.turned |= set(keys)
        new = {key: applied(held, _exchanged) for key, held in fields(self.batch).items() if key in keys}
        self.batch = replaced(self.batch, new)

    def as_given(self, batch: Any) -> Any:
        """A batch in the form in which the step takes it."""
        new: dict[Key, Any] = {}
        for key, held in fields(batch).items():
            if key in self.turned:
                new[key] = _exchanged(tensor_of(held))
            if key in self._original:
                new[key] = self._original[key](new.get(key, tensor_of(held)))
        return replaced(batch, new) if new else batch

    def _with_tensors(self, batch: Any, key: Key | None = None, *, in_list: bool = False) -> Any:
        if isinstance(batch, np.ndarray):
            if batch.dtype.kind not in "biuf" or batch.dtype.itemsize > 8:
                return batch
            dtype = batch.dtype
            self._original[0 if key is None else key] = lambda tensor: (
                tensor.detach().numpy().astype(dtype, copy=False)
            )
            return torch.from_numpy(np.ascontiguousarray(batch)).clone()
        if _is_numbers(batch) and not in_list:
            kind = type(batch)
            self._original[0 if key is None else key] = lambda tensor: kind(tensor.tolist())
            floats = any(isinstance(number, float) for number in batch)
            return torch.tensor(batch, dtype=torch.float64 if floats else torch.int64)
        if isinstance(batch, LEAVES):
            return batch
        new = {}
        for name, part in parts(batch):
            place = name if key is None else f"{key}.{name}"
            inner = key is not None and isinstance(batch, (list, tuple))
            other = self._with_tensors(part, place, in_list=inner)
            if other is not part:
                new[name] = other
        return with_parts(batch, new) if new else batch


def _exchanged(tensor: Tensor) -> Tensor:
    """The tensor with its first two axes exchanged."""
    return tensor.transpose(0, 1).contiguous()


def _is_numbers(part: Any) -> bool:
    """Whether a list or tuple holds one number for each sample."""
    return (
        type(part) in (list, tuple) and len(part) > 0 and all(type(number) in (int, float) for number in part)
    )
