"""Which entries of an intermediate tensor belong to real entries of the batch.

Each memory has a Boolean validity mask, so that views need no rule. What an operation makes gets its mask by the first
rule that fits: copies run on the mask, pointwise operations take the intersection, products ask for one real pair,
reductions for one real entry; what keeps leading dimensions takes their mask over; what has the shape of the batch's
mask takes that; everything else is real.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from maskgrad.doctor.operations import COPIES, Operated, expanded, key_of, mapped, tensors_in

__all__ = ["ValidityMasks", "distinct"]


def distinct(masks: list[Tensor]) -> list[Tensor]:
    """Masks of samples, or of batch and sequence: each once, without sizes of 1 between or after both."""
    kept: list[Tensor] = []
    for mask in masks:
        axes = [axis for axis in range(1, mask.ndim) if mask.shape[axis] == 1]
        plain = mask.squeeze(axes) if mask.ndim - len(axes) == 2 else mask
        if not any(torch.equal(plain, other) for other in kept):
            kept.append(plain)
    return kept


def _shaped(mask: Tensor, output: Tensor) -> Tensor | None:
    """The mask of samples, or of samples and positions, if an axis has their number; heads may stand with samples."""
    shape = list(output.shape)
    if not output.numel() or not 1 <= mask.ndim <= min(2, len(shape)):
        return None
    mask = mask.to(output.device)
    if mask.ndim == 2 and shape[0] == mask.numel():
        return expanded(mask.flatten(), shape)
    if len(mask) not in shape:
        if shape[0] % len(mask):
            return None
        mask = mask.repeat_interleave(shape[0] // len(mask), 0)
    batch = shape.index(len(mask))
    if mask.ndim == 1:
        return expanded(mask, shape[batch:]).expand(shape)
    axes = [axis for axis, size in enumerate(shape) if size == mask.shape[1] and axis != batch]
    validity = torch.ones(shape, dtype=torch.bool, device=output.device)
    for axis in axes[:2] if axes[1:2] == [axis + 1 for axis in axes[:1]] else axes[:1]:
        view = [size if place in (batch, axis) else 1 for place, size in enumerate(shape)]
        validity &= (mask if batch < axis else mask.t()).reshape(view)
    return validity if axes else None


_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "mv": (0, 1), "dot": (0, 1)}
_REDUCTIONS = {
    "sum", "mean", "amax", "amin", "max", "min", "logsumexp", "prod", "any", "all", "std", "var", "var_mean",
    "std_mean", "argmax", "argmin", "norm", "linalg_vector_norm", "median", "nansum", "kthvalue", "mode",
}  # fmt: skip
#: reductions with another argument before the dimension
_SECOND_ARGUMENT = {"norm", "linalg_vector_norm", "kthvalue"}
#: the first argument decides which positions of the result are real
_ATTENTION = ("_scaled_dot_product", "_flash_attention", "_efficient_attention")
_QUERIES = (*_ATTENTION, "convolution", "gather", "embedding")


@dataclass
class _Memory:
    """The validity of one memory, entry for entry, and views of it that lost their position in the sequence."""

    alive: StorageWeakRef
    flat: Tensor
    slices: set[tuple[Any, ...]] = field(default_factory=set)


class ValidityMasks:
    """The validity of every memory that has one."""

    def __init__(self, masks: list[Tensor]) -> None:
        self._memories: dict[int | None, _Memory] = {}
        self._many = 8
        #: distinct masks of the batch, by which shapes are recognised
        self.masks = distinct(masks)

    def _memory(self, tensor: Tensor, *, make: bool = False) -> _Memory | None:
        key = key_of(tensor)
        known = self._memories.get(key)
        entries = 0 if key is None else tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
        if known is not None and not known.alive.expired() and len(known.flat) == entries:
            return known
        if key is None or not make:
            return None
        if len(self._memories) > self._many:
            self._memories = {at: held for at, held in self._memories.items() if not held.alive.expired()}
            self._many = 8 + 2 * len(self._memories)
        flat = torch.ones(entries, dtype=torch.bool, device=tensor.device)
        made = self._memories[key] = _Memory(StorageWeakRef(tensor.untyped_storage()), flat)
        return made

    def get(self, tensor: Tensor) -> Tensor | None:
        """The validity of a tensor, None if all of it is real."""
        memory = self._memory(tensor)
        if memory is None or _view(tensor) in memory.slices:
            return None
        return memory.flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def set(self, tensor: Tensor, validity: Tensor | None) -> None:
        """Write the validity of a tensor into that of its memory."""
        memory = self._memory(tensor, make=validity is not None)
        if memory is None:
            return
        memory.slices.discard(_view(tensor))
        view = memory.flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if validity is None:
            view.fill_(True)
            return
        for axis, stride in enumerate(view.stride() if view.numel() else ()):
            if stride == 0:  # one entry of an expanded view stands for many: it is real if one of them is
                validity, view = validity.any(axis, keepdim=True), view.narrow(axis, 0, 1)
        view.copy_(validity)

    def slice(self, tensor: Tensor) -> None:
        """From here on all of this view is real: its position in the sequence is lost."""
        memory = self._memory(tensor, make=True)
        if memory is not None:
            memory.slices.add(_view(tensor))

    def is_slice(self, tensor: Tensor) -> bool:
        """Whether the tensor is a view that lost its position."""
        memory = self._memory(tensor)
        return memory is not None and _view(tensor) in memory.slices

    def of_result(self, call: Operated, result: Any) -> list[Tensor | None]:
        """The validity of each tensor that an operation made, None where all is real."""
        name, outputs = call.facts.name, tensors_in(result)
        validities = [self.get(tensor) for tensor in call.inputs]
        steps = {mask.shape[1] for mask in self.masks if mask.ndim == 2}
        if name in ("stack", "cat") and len(validities) in steps and all(held is None for held in validities):
            return [self.by_shape(output) for output in outputs]  # positions that were walked one by one
        if name in COPIES:
            copied = self._copied(call)
            if copied is not None and len(copied) == len(outputs):
                return copied
        return [self._of_one(call, validities, output) for output in outputs]

    def _of_one(self, call: Operated, validities: list[Tensor | None], output: Tensor) -> Tensor | None:
        name, args = call.facts.name, call.args
        known = [validity for validity in validities if validity is not None]
        if call.facts.pointwise or name == "masked_fill":
            known = self._at_its_positions(known, output)
            return functools.reduce(torch.logical_and, known).expand(output.shape) if known else None
        if name in _PRODUCTS:
            first, second = _PRODUCTS[name]
            return self._product(args[first], args[second], output)
        if name in _REDUCTIONS:
            return _reduced(call, validities[0] if validities else None, output)
        if name.startswith(_QUERIES):
            if name == "convolution" and validities[0] is not None and not args[6]:
                # padded by hand, it keeps the positions of the batch
                kept = self.by_shape(output) if validities[0].shape[2:] != output.shape[2:] else None
                return _by_windows(args, validities[0], output) if kept is None else kept
            asked = validities[1 if name == "embedding" else 0]
            if asked is not None:
                return _taken_over(asked, output)
            # attention over keys of another sequence makes real rows only
            return None if name.startswith(_ATTENTION) else self.by_shape(output)
        same_shape = [validity for validity in known if validity.shape == output.shape]
        if same_shape:
            return functools.reduce(torch.logical_and, same_shape)
        return self.by_shape(output)

    def _at_its_positions(self, known: list[Tensor], output: Tensor) -> list[Tensor]:
        """The operand whose validity is a mask of the batch, where another was moved along the sequence; else all."""
        shape = output.shape
        if len(known) < 2 or any(validity.shape[:2] != shape[:2] for validity in known):
            return known
        masks = [mask.to(output.device) for mask in self.masks if mask.ndim == 2]
        # channels may stand before the positions
        laid = [expanded(m, shape) if m.shape == shape[:2] else _shaped(m, output) for m in masks]
        whole = [validity.expand(shape) for validity in known]
        own = [each for each in whole if any(mask is not None and torch.equal(each, mask) for mask in laid)]
        return own[:1] or known

    def _or_real(self, tensor: Tensor) -> Tensor:
        validity, real = self.get(tensor), torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device)
        return real if validity is None else validity

    def _copied(self, call: Operated) -> list[Tensor | None] | None:
        """Run a copy on the validities: constants are real, indices stay what they are."""
        args, kwargs = call.args, call.kwargs
        if call.facts.name == "copy_":
            validity = self.get(args[1])
            return [None if validity is None else validity.expand(args[0].shape)]
        carriers = {id(tensor) for tensor in tensors_in(args[:1])}  # of entries, not of positions or a mask
        args, kwargs = mapped(lambda t: self._or_real(t) if id(t) in carriers else t, (args, kwargs))
        if "dtype" in kwargs:
            kwargs = {**kwargs, "dtype": torch.bool}
        if call.facts.name == "constant_pad_nd":
            args = (*args[:2], True)
        try:
            copied = [output.bool() for output in tensors_in(call.func(*args, **kwargs))]
        except (RuntimeError, NotImplementedError):
            return None
        return list(copied)

    def _product(self, first: Tensor, second: Tensor, output: Tensor) -> Tensor | None:
        """A pair of real entries makes a result real."""
        if self.get(first) is None and self.get(second) is None:
            return None
        left, right = self._or_real(first), self._or_real(second)
        # the rows of one, or the columns of the other, are alike in most products: one is enough
        if left.ndim > 1 and torch.equal(left, left[..., :1, :].expand_as(left)):
            left = left[..., :1, :]
        if right.ndim > 1 and torch.equal(right, right[..., :1].expand_as(right)):
            right = right[..., :1]
        return (torch.matmul(left.float(), right.float()) > 0).expand(output.shape)

    def by_shape(self, output: Tensor) -> Tensor | None:
        """The mask, if an axis has the size of the batch and others that of the sequence."""
        validities = (_shaped(mask, output) for mask in self.masks)
        return next((validity for validity in validities if validity is not None), None)


def _taken_over(validity: Tensor, output: Tensor) -> Tensor | None:
    """The validity, if it depends only on leading dimensions that the output shares."""
    while validity.ndim and validity.numel() and bool((validity == validity[..., :1]).all()):
        validity = validity[..., 0]
    if validity.ndim == 0 or output.shape[: validity.ndim] != validity.shape:
        return None
    return expanded(validity, output.shape)


def _reduced(call: Operated, validity: Tensor | None, output: Tensor) -> Tensor | None:
    index = 2 if call.facts.name in _SECOND_ARGUMENT else 1
    axes = call.kwargs.get("dim", call.args[index] if len(call.args) > index else None)
    axes = [axes] if isinstance(axes, int) else axes
    if validity is None or output.ndim == 0 or not isinstance(axes, (list, tuple)):
        return None
    return validity.any(tuple(axes), keepdim=True).reshape(output.shape) if axes else None


def _by_windows(args: Any, validity: Tensor, output: Tensor) -> Tensor:
    """A convolution keeps positions, or else a position is real if its whole window is."""
    weight, _, stride, padding, dilation = args[1:6]
    positions = validity.any(1, keepdim=True)
    if positions.shape[2:] != output.shape[2:]:
        window = torch.ones((1, 1, *weight.shape[2:]), device=weight.device)
        rest = (stride, padding, dilation, False, [0] * len(stride), 1)
        missing = torch.convolution((~positions).float(), window, None, *rest)
        reach = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
        if list(stride) == [1] and list(padding) == reach:
            # padded for a causal one: each position ends its own window, and what comes after the last is cut off
            positions = torch.cat([positions, missing[..., positions.shape[2] :] == 0], 2)
        else:
            positions = missing == 0
    return positions.expand(output.shape)


def _view(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
