"""The specified entries of inputs and results, between which a gradient check differentiates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor, from_sparse
from maskgrad.masked_tensor.sparse_leaves import torch_tensor_of
from maskgrad.masked_tensor.tensor import stored_of
from maskgrad.patterns import Pattern, StoredPattern
from maskgrad.patterns.stored import read_places, write_places

__all__ = ["Input", "entries_of_outputs", "inputs_of"]

DOUBLE = (torch.float64, torch.complex128)


class Input:
    """One argument that requires a gradient.

    Its *point* is the plain tensor that holds its values: the data of a mask, stored values, or a tensor itself. Its
    *entries* (n,) are the specified ones among them.
    """

    def __init__(self, position: int, argument: Any) -> None:
        self.position = position
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
        """Return a leaf with the specified values, (n,)."""
        flat = self.point.reshape(-1)
        return (flat if self.specified is None else flat[self.specified]).clone().requires_grad_()

    def with_entries(self, entries: Tensor) -> Any:
        """Return the argument with these entries; values under its mask are unchanged."""
        if self.specified is None:
            return self.argument(entries.reshape(self.point.shape))
        point = self.point.reshape(-1).index_put((self.specified,), entries)
        return self.argument(point.reshape(self.point.shape))

    def argument(self, point: Tensor) -> Any:
        """Return the argument of the function with other values."""
        if self.pattern is None:
            return point
        if self.sparse:
            assert isinstance(self.pattern, StoredPattern)
            return torch_tensor_of(point, self.pattern)
        return MaskedTensor(point, self.pattern)

    def leaf(self) -> tuple[Any, Any]:
        """Return the argument, and the leaf of all of its entries, those under the mask included."""
        if self.sparse:
            assert isinstance(self.pattern, StoredPattern)
            t = torch_tensor_of(self.point, self.pattern).requires_grad_()
            return t, t
        point = self.point.clone().requires_grad_()
        return self.argument(point), point

    def outside(self, gradient: Tensor) -> list[tuple[list[int], complex]]:
        """Return the index and value of the first gradient that is not 0 outside the pattern."""
        gradient = dense(gradient.detach())
        if self.sparse:
            assert isinstance(self.pattern, StoredPattern)
            gradient = write_places(gradient, self.pattern.coordinates(), gradient.new_zeros(()))
        elif self.specified is None:
            return []
        else:
            gradient = gradient.reshape(-1).index_fill(0, self.specified, 0).reshape(self.point.shape)
        return [(at, gradient[tuple(at)].item()) for at in (gradient != 0).nonzero()[:1].tolist()]  # NaN != 0

    def inside(self, gradient: Tensor) -> Tensor:
        """Return a gradient at the specified entries, (n,)."""
        gradient = dense(gradient)
        if self.sparse:
            assert isinstance(self.pattern, StoredPattern)
            return self.pattern.gathered(read_places(gradient, self.pattern.coordinates())).reshape(-1)
        flat = gradient.reshape(-1)
        return flat if self.specified is None else flat[self.specified]


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


def entries_of_outputs(outputs: Any) -> list[Tensor]:
    """Return the specified entries (n,) of each floating-point result; at least one."""
    found = [
        _entries(output)
        for output in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))
        if isinstance(output, (Tensor, MaskedTensor))
        and (output.dtype.is_floating_point or output.dtype.is_complex)
    ]
    if not found:
        raise ValueError("gradcheck: no result is a floating-point tensor")
    return found


def _entries(output: Any) -> Tensor:
    if not isinstance(output, MaskedTensor):
        return dense(output).reshape(-1)
    stored = stored_of(output)
    if stored is not None:
        return stored.values.reshape(-1)
    specified: Tensor = output._values[output.mask]
    return specified


def dense(t: Tensor) -> Tensor:
    """Return a strided tensor, whose gradient reaches entries that are not stored, too."""
    if t.layout == torch.strided:
        return t
    return t.to_dense(masked_grad=False) if t.requires_grad else t.to_dense()
