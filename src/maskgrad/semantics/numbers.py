"""Plain scalars: full reductions return plain 0-dim tensors, for optimizers, trainers and loggers.

If nothing is specified the scalar is PyTorch's for an empty tensor, with a gradient of zero, so that
``main + 0.1 * aux`` trains on ``main`` when ``aux`` is empty. What PyTorch refuses on an empty tensor stays masked.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad.mode import can_read
from maskgrad.semantics.entries import Entries, chosen, filler_as

#: Specified entries of a reduction.
REDUCED = "along a dimension: specified where at least one entry was; else a plain scalar"


@dataclass(frozen=True)
class Number:
    """When an operation returns a scalar, and its value if nothing is specified.

    Attributes:
        nothing: that value.
        dim: position of the argument ``dim``, with which the result stays masked; None if there is no such argument.
        unless: called with the arguments, returns whether PyTorch refuses an empty tensor.
    """

    nothing: float
    dim: int | None = 1
    unless: Callable[..., bool] | None = None

    def of(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a rule, plain if it is a scalar."""
        if type(result) is tuple:  # var_mean
            return tuple([self.of(part, args, kwargs) for part in result])
        if type(result) is not Entries or result.values.ndim:
            return result
        if self.dim is not None:
            dim = args[self.dim] if len(args) > self.dim else kwargs.get("dim", kwargs.get("axis"))
            if not over_everything(dim):
                return result
        if self.unless is not None and self.unless(*args, **kwargs):
            return result
        return number(result, self.nothing)


def over_everything(dim: Any) -> bool:
    """Return whether ``dim`` selects all dimensions: None, (), or the Boolean of ``var(x, unbiased)``."""
    return dim is None or isinstance(dim, bool) or (not isinstance(dim, int) and len(dim) == 0)


def number(result: Entries, nothing: float) -> Tensor:
    """A 0-dim result as a plain tensor; notes whether anything was specified."""
    note(result.mask)
    return plain(result, nothing)


def plain(result: Entries, nothing: float) -> Tensor:
    """A result as a plain tensor: ``nothing`` where it is unspecified, with a gradient of zero."""
    values = result.values
    if not result.mask.ndim and can_read(result.mask) and result.mask.item():
        return values
    if values.is_complex() and math.isnan(nothing):
        return torch.where(result.mask, values, complex(nothing, nothing))
    return chosen(result.mask, values, filler_as(values.dtype, nothing))


def note(something_left: Tensor | None) -> None:
    """Note a flag of a scalar for :func:`noting`; None: something is specified."""
    for noted in _NOTED:
        noted.append(torch.ones((), dtype=torch.bool) if something_left is None else something_left)


_NOTED: list[list[Tensor]] = []


@contextlib.contextmanager
def noting() -> Iterator[list[Tensor]]:
    """Note for each scalar of this context whether anything was specified."""
    noted: list[Tensor] = []
    _NOTED.append(noted)
    try:
        yield noted
    finally:
        _NOTED[:] = [others for others in _NOTED if others is not noted]
