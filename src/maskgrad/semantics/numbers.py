"""Numbers are plain: a reduction over everything gives a plain 0-dim tensor, as optimizers, trainers and loggers want.

Where nothing is left the number is PyTorch's on an empty tensor, with a gradient of zero, so that ``main + 0.1 * aux``
trains on ``main`` when ``aux`` had nothing. What PyTorch refuses on an empty tensor stays masked.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns.eager import can_read_values
from maskgrad.semantics.entries import Entries, chosen, filler_as

#: Which entries of a reduction are specified.
REDUCED = "along a dimension: specified where at least one entry was; else a plain number"


@dataclass(frozen=True)
class Number:
    """When an operation gives a number, and which one if nothing is left.

    Attributes:
        nothing: the number.
        dim: the position of the argument ``dim``, with which the result stays masked; None if there is none.
        unless: asked with the arguments, whether PyTorch has no answer on an empty tensor.
    """

    nothing: float
    dim: int | None = 1
    unless: Callable[..., bool] | None = None

    def of(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a rule, plain if it is a number."""
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
    """Whether an argument ``dim`` names no dimension: None and () are all, ``var(x, unbiased)`` has a Boolean there."""
    return dim is None or isinstance(dim, bool) or (not isinstance(dim, int) and len(dim) == 0)


def number(result: Entries, nothing: float) -> Tensor:
    """A 0-dim result as a plain tensor, of which is noted whether anything was left."""
    note(result.mask)
    return plain(result, nothing)


def plain(result: Entries, nothing: float) -> Tensor:
    """A result as a plain tensor: ``nothing`` where it is unspecified, with a gradient of zero."""
    values = result.values
    if not result.mask.ndim and can_read_values(result.mask) and result.mask.item():
        return values
    if values.is_complex() and math.isnan(nothing):
        return torch.where(result.mask, values, complex(nothing, nothing))
    return chosen(result.mask, values, filler_as(values.dtype, nothing))


def note(something_left: Tensor | None) -> None:
    """What :func:`noting` wants to know of a number; None: there is something."""
    for noted in _NOTED:
        noted.append(torch.ones((), dtype=torch.bool) if something_left is None else something_left)


_NOTED: list[list[Tensor]] = []


@contextlib.contextmanager
def noting() -> Iterator[list[Tensor]]:
    """Note of each number of this context whether anything was left of it, which the number itself does not tell."""
    noted: list[Tensor] = []
    _NOTED.append(noted)
    try:
        yield noted
    finally:
        _NOTED[:] = [others for others in _NOTED if others is not noted]
