"""Creation: what an operation makes itself is specified, whatever the pattern of the tensor it is modelled on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.semantics.entries import Entries, as_entries
from maskgrad.semantics.facts import Operation, functions_named
from maskgrad.semantics.signatures import bound

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OPERATIONS"]


def create(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """A new tensor with the shape, dtype or device of a masked one."""
    plain = [a.values if isinstance(a, Entries) else a for a in args]
    named = {k: a.values if isinstance(a, Entries) else a for k, a in kwargs.items()}
    return as_entries(function(*plain, **named))


def fill(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """Write one value everywhere, as ``x[...] = value`` does: specified everywhere, if the value is."""
    arguments = bound("input value", args, kwargs)
    x, value = arguments["input"], arguments["value"]
    shape_of = x.values if isinstance(x, Entries) else x
    values = torch.fill(shape_of, value.values if isinstance(value, Entries) else value)
    if isinstance(value, Entries):
        return Entries(values, value.mask.expand(values.shape))
    return as_entries(values)


def zero(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``x.zero_()``: zeros everywhere, all specified."""
    return as_entries(torch.fill(args[0].values, 0))


def copy(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``x.copy_(source)``: the values of the source in the dtype of ``x``, specified where the source is."""
    arguments = bound("input src non_blocking", args, kwargs)
    target, source = (a if isinstance(a, Entries) else as_entries(a) for a in map(arguments.get, ("input", "src")))
    values, asynchronous = target.values, bool(arguments.get("non_blocking"))
    found, mask = (part.to(values.device, non_blocking=asynchronous).expand(values.shape) for part in source)
    return Entries(found.to(values.dtype), mask)


def _record(name: str) -> Operation:
    functions, _, methods = functions_named(name)
    return Operation(name, "creation", functions, create, "everything is specified", "none", methods=methods)


NAMES = """
    empty_like zeros_like ones_like full_like rand_like randn_like randint_like
    new_zeros new_ones new_full new_empty new_empty_strided new_tensor
"""

OPERATIONS: tuple[Operation, ...] = (
    *(_record(name) for name in NAMES.split()),
    Operation(
        "fill",
        "creation",
        (torch.fill,),
        fill,
        "everything is specified, if the value is",
        "to the value",
        in_place=(torch.fill_, Tensor.fill_),
    ),
    Operation(
        "zero_",
        "creation",
        (),
        zero,
        "everything is specified",
        "zero",
        in_place=(torch.zero_, Tensor.zero_),
    ),
    Operation(
        "copy_",
        "creation",
        (),
        copy,
        "specified where the source is, broadcast",
        "to the source, at its specified entries",
        in_place=(Tensor.copy_,),
    ),
)
