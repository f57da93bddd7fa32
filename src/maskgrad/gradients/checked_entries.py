"""The entries that a gradient check perturbs, and those that it compares."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor, from_sparse
from maskgrad.masked_tensor.sparse_leaves import torch_tensor_of
from maskgrad.masked_tensor.tensor import listed_of, stored_of
from maskgrad.patterns import Pattern, StoredPattern
from maskgrad.patterns.stored import read_places, write_places

__all__ = ["Input", "Place", "entries_of_outputs", "inputs_of"]

Place = tuple[int, ...]
DOUBLE = (torch.float64, torch.complex128)


class Input:
    """One argument that requires a gradient.

    Its *point* is the plain tensor that holds its values: the data of a mask, stored values, or a tensor itself. Its
    *entries* (n,) are the specified ones among them.
    """

    def __init__(self, position: int, argument: Any) -> None:
        self.position, self.given = position, argument
        self.sparse = isinstance(argument, Tensor) and argument.layout != torch.strided
        masked = from_sparse(argument.detach()) if self.sparse else argument
        self.pattern: Pattern | None = masked._pattern if isinstance(masked, MaskedTensor) else None
        values = masked._values if isinstance(masked, MaskedTensor) else masked
        self.point: Tensor = values.detach().clone(memory_format=torch.contiguous_format)
        self.specified: Tensor | None = None
        if self.pattern is not None and not isinstance(self.pattern, StoredPattern):
            self.specified = self.pattern.mask.reshape(-1).nonzero().squeeze(1)

    @property
    def name(self) -> str:
        """Name of the input in messages."""
        kind = "sparse tensor" if self.sparse else "MaskedTensor" if self.pattern is not None else "tensor"
        return f"input {self.position} ({kind})"

    def entries(self) -> Tensor:
        """Return the specified values, (n,)."""
        flat = self.point.reshape(-1)
        return flat if self.specified is None else flat[self.specified]

    def placed(self, entries: Tensor) -> Tensor:
        """Return the point with these entries; unspecified ones are unchanged."""
        if self.specified is None:
            return entries.reshape(self.point.shape)
        return self.point.reshape(-1).index_put((self.specified,), entries).reshape(self.point.shape)

    def argument(self, point: Tensor) -> Any:
        """Return the argument of the function."""
        if self.pattern is None:
            return point
        if self.sparse:
            assert isinstance(self.pattern, StoredPattern)
            return torch_tensor_of(point, self.pattern)
        return MaskedTensor(point, self.pattern)

    def with_pattern(self, point: Tensor) -> Any:
        """Return a MaskedTensor, for a sparse tensor as well; a plain tensor if the input is one."""
        return point if self.pattern is None else MaskedTensor(point, self.pattern)

    def leaf(self) -> tuple[Any, Any]:
        """Return the argument for one backward pass, and the tensor to differentiate with respect to."""
        if self.sparse:
            assert isinstance(self.pattern, StoredPattern)
            t = torch_tensor_of(self.point, self.pattern).requires_grad_()
            return t, t
        point = self.point.clone().requires_grad_()
        return self.argument(point), point

    def split(self, gradient: Tensor) -> tuple[Tensor, list[tuple[Place, complex]]]:
        """Return a gradient at the specified entries, (n,), and the first nonzero value elsewhere."""
        if gradient.layout != torch.strided:
            gradient = _dense(gradient)
        if self.sparse:
            assert isinstance(self.pattern, StoredPattern)
            places = self.pattern.coordinates()
            inside = self.pattern.gathered(read_places(gradient, places)).reshape(-1)
            rest = write_places(gradient, places, gradient.new_zeros(()))
        else:
            flat = gradient.reshape(-1)
            if self.specified is None:
                return flat, []
            inside = flat[self.specified]
            rest = flat.index_fill(0, self.specified, 0).reshape(gradient.shape)
        return inside, [
            (tuple(at), rest[tuple(at)].item()) for at in (rest != 0).nonzero()[:1].tolist()
        ]  # NaN != 0, too

    def place(self, number: int) -> Place:
        """Return the index in the full shape of the entry with this position."""
        if isinstance(self.pattern, StoredPattern):
            return _place_of_stored(self.point.shape, self.pattern, number)
        at = number if self.specified is None else int(self.specified[number])
        return _unravelled(at, self.point.shape)


def inputs_of(arguments: tuple[Any, ...]) -> list[Input]:
    """Return the arguments that require a gradient: at least one, in double precision."""
    found = []
    for position, argument in enumerate(arguments):
        if not isinstance(argument, (Tensor, MaskedTensor)) or not argument.requires_grad:
            continue
        if argument.dtype not in DOUBLE:
            raise TypeError(
                f"gradcheck: input {position} must have dtype torch.float64 or torch.complex128, for finite "
                f"differences to be precise, found {argument.dtype}; use .double()"
            )
        found.append(Input(position, argument))
    if not found:
        raise ValueError(
            "gradcheck needs an input that requires a gradient, found none; use x.requires_grad_() before"
        )
    return found


def entries_of_outputs(outputs: Any) -> list[tuple[Any, Tensor]]:
    """Return each differentiable result with its specified entries, (n,); at least one."""
    found = []
    for output in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
        if not isinstance(output, (Tensor, MaskedTensor)) or not (
            output.dtype.is_floating_point or output.dtype.is_complex
        ):
            continue
        found.append((output, _entries(output)))
    if not found:
        raise ValueError("gradcheck: no result is a floating-point tensor")
    return found


def _entries(output: Any) -> Tensor:
    if isinstance(output, MaskedTensor):
        stored = stored_of(output)
        if stored is not None:
            return stored.values.reshape(-1)
        specified: Tensor = output._values[output.mask]
        return specified
    return (output if output.layout == torch.strided else _dense(output)).reshape(-1)


def _dense(t: Tensor) -> Tensor:
    return t.to_dense(masked_grad=False) if t.requires_grad else t.to_dense()


def place_in(output: Any, number: int) -> Place:
    """Return the index in the full shape of an output of the result with this position."""
    if isinstance(output, MaskedTensor):
        stored = stored_of(output)
        if stored is not None:
            return _place_of_stored(stored.values.shape, stored.pattern, number)
        number = int(output.mask.reshape(-1).nonzero()[number])
    return _unravelled(number, output.shape)


def _place_of_stored(shape: torch.Size, pattern: StoredPattern, number: int) -> Place:
    """Return the index of the stored value with this position; ``shape`` is that of all values."""
    numbers = torch.arange(shape.numel(), device=pattern.tensors()[0].device).reshape(shape)
    listed = listed_of(MaskedTensor(numbers, pattern))
    assert listed is not None
    coordinates, entries = listed
    index, *inner = (entries == number).nonzero()[0].tolist()
    return (*coordinates[:, index].tolist(), *inner)


def _unravelled(number: int, shape: torch.Size) -> Place:
    return tuple(int(at) for at in torch.unravel_index(torch.tensor(number), shape))
