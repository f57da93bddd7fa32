"""Creation: tensors like another have its pattern; of another size, all is specified that an operation makes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.kernels.smallest import intersected
from maskgrad.semantics.entries import Entries, as_entries, values_of
from maskgrad.semantics.facts import Operation, record
from maskgrad.semantics.plain_arguments import plain_arguments
from maskgrad.semantics.signatures import bound

if TYPE_CHECKING:
    from collections.abc import Callable

LIKE = frozenset(
    getattr(torch, f"{n}_like") for n in ("zeros", "ones", "full", "empty", "rand", "randn", "randint")
)
#: What is written: its position after the model, and its name.
CONTENT = {"full_like": (0, "fill_value"), "new_full": (1, "fill_value"), "new_tensor": (0, "data")}


def create(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A new tensor with the dtype and device of a masked one; if it has its shape, too, then its pattern."""
    options = {("input" if name == "self" else name): value for name, value in kwargs.items()}
    model, *rest = args if args else (options.pop("input"),)
    known, rest, options = _content(function.__name__, rest, options)
    values = function(values_of(model), *rest, **options)
    masks = [] if known is None else [known]
    if isinstance(model, Entries) and function in LIKE:
        masks.append(model.mask)
    if not masks:
        return as_entries(values) if isinstance(model, Entries) else values
    masks = [mask.to(values.device).expand(values.shape) for mask in masks]
    return Entries(values, masks[0] if len(masks) == 1 else intersected(*masks))


def _content(
    name: str, rest: list[Any], options: dict[str, Any]
) -> tuple[Tensor | None, list[Any], dict[str, Any]]:
    """Where what is to be written is specified, None if it is plain; and all arguments, plain."""
    place, key = CONTENT.get(name, (0, ""))
    given = options if key in options else rest
    where: Any = key if key in options else place
    content = given[where] if key in options or (key and place < len(rest)) else None
    if not isinstance(content, Entries):
        return None, *plain_arguments(rest, options)
    rest, options = list(rest), dict(options)
    (options if key in options else rest)[where] = torch.where(content.mask, content.values, 0)
    return content.mask, *plain_arguments(rest, options)


def fill(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """Write one value everywhere, as ``x[...] = value`` does: specified everywhere, if the value is."""
    arguments = bound("input value", args, kwargs)
    value = arguments["value"]
    values = torch.fill(values_of(arguments["input"]), values_of(value))
    if isinstance(value, Entries):
        return Entries(values, value.mask.expand(values.shape))
    return as_entries(values)


def zero(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``x.zero_()``: zeros everywhere, all specified."""
    return as_entries(torch.fill(args[0].values, 0))


def copy(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``x.copy_(source)``: the values of the source in the dtype of ``x``, specified where the source is."""
    arguments = bound("input src non_blocking", args, kwargs)
    target, source = as_entries(arguments["input"]), arguments["src"]
    values, device = target.values, target.values.device
    if not isinstance(source, (Entries, Tensor)):  # a number, which float32 on the way would round
        source = torch.empty((), dtype=values.dtype, device=device).copy_(source)
    source = as_entries(source)
    # to the CPU this must wait: what is read next would not be there yet
    non_blocking = bool(arguments.get("non_blocking")) and device.type != "cpu"
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

OPERATIONS = (
    *(_record(name) for name in NAMES.split()),
    record(
        "fill",
        "creation",
        fill,
        "everything is specified, if the value is",
        "to the value",
        functions=(torch.fill,),
    ),
    record(
        "zero_",
        "creation",
        zero,
        "everything is specified",
        "zero",
        functions=(),
        in_place=(torch.zero_, Tensor.zero_),
    ),
    record(
        "copy_",
        "creation",
        copy,
        "specified where the source is, broadcast",
        "to the source, at its specified entries",
        functions=(),
        in_place=(Tensor.copy_,),
    ),
)
