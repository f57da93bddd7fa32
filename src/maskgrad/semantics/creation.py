"""Creation: ``*_like`` tensors keep the pattern; other sizes are fully specified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.smallest import intersected
from maskgrad.semantics.entries import Entries, Operand, as_entries, filled, values_of
from maskgrad.semantics.facts import Operation, of_rule, record
from maskgrad.semantics.signatures import plain_arguments

LIKE = frozenset(
    getattr(torch, f"{n}_like") for n in ("zeros", "ones", "full", "empty", "rand", "randn", "randint")
)
#: The fill value: its position after the model, and its name.
CONTENT = {"full_like": (0, "fill_value"), "new_full": (1, "fill_value"), "new_tensor": (0, "data")}


def create(function: Callable[..., Any], input: Operand, *args: Any, **kwargs: Any) -> Any:
    """A new tensor with the dtype and device of a masked one; with the same shape it has the same pattern."""
    rest, masks = list(args), []
    place, key = CONTENT.get(function.__name__, (len(args), ""))
    holder: Any = kwargs if key in kwargs else rest
    where: Any = key if key in kwargs else place
    if (key in kwargs or place < len(args)) and isinstance(holder[where], Entries):
        masks.append(holder[where].mask)
        holder[where] = filled(holder[where])
    rest, options = plain_arguments(rest, kwargs)
    values = function(values_of(input), *rest, **options)
    if isinstance(input, Entries) and function in LIKE:
        masks.append(input.mask)
    if not masks:
        return as_entries(values) if isinstance(input, Entries) else values
    masks = [mask.to(values.device).expand(values.shape) for mask in masks]
    return Entries(values, masks[0] if len(masks) == 1 else intersected(*masks))


def fill(input: Operand, value: Any) -> Entries:
    """Write one value everywhere, as ``x[...] = value`` does: specified everywhere if the value is."""
    values = torch.fill(values_of(input), values_of(value))
    return (
        Entries(values, value.mask.expand(values.shape)) if isinstance(value, Entries) else as_entries(values)
    )


def zero(input: Entries) -> Entries:
    """``x.zero_()``: zeros everywhere, all specified."""
    return as_entries(torch.fill(input.values, 0))


def copy(input: Operand, src: Any, non_blocking: bool = False) -> Entries:
    """``x.copy_(source)``: the values of the source in the dtype of ``x``, specified where the source is."""
    values, source = values_of(input), src
    device = values.device
    if not isinstance(source, (Entries, Tensor)):  # a scalar, which float32 would round
        source = torch.empty((), dtype=values.dtype, device=device).copy_(source)
    source = as_entries(source)
    # copies to the CPU must wait: the data would not be there yet
    non_blocking = bool(non_blocking) and device.type != "cpu"
    found, mask = (part.to(device, non_blocking=non_blocking).expand(values.shape) for part in source)
    return Entries(found.to(values.dtype), mask)


def _record(name: str) -> Operation:
    pattern = "that of the model" if name.endswith("_like") else "everything is specified"
    if name in CONTENT:
        pattern += ", if the value is"
    return record(name, "creation", create, pattern)


NAMES = """
    empty_like zeros_like ones_like full_like rand_like randn_like randint_like
    new_zeros new_ones new_full new_empty new_empty_strided new_tensor
"""
FILLED = "everything is specified, if the value is", "to the value"
ZEROS = "everything is specified", "zero"
COPIED = "specified where the source is, broadcast", "to the source, at its specified entries"

OPERATIONS = (
    *(_record(name) for name in NAMES.split()),
    of_rule(fill, "creation", *FILLED, functions=(torch.fill,)),
    record("zero_", "creation", zero, *ZEROS, functions=(), in_place=(torch.zero_, Tensor.zero_)),
    record("copy_", "creation", copy, *COPIED, functions=(), in_place=(Tensor.copy_,)),
)
