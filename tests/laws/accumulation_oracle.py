"""What meets at one place: the specified contributions in a list for each place, combined by torch's own reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.slices import Result

__all__ = ["ACCUMULATIONS", "accumulates", "accumulation"]

#: The arguments of each, by torch's names.
NAMES = {
    "scatter": "x dim index source reduce",
    "scatter_add": "x dim index source",
    "scatter_reduce": "x dim index source reduce",
    "index_add": "x dim index source",
    "index_reduce": "x dim index source reduce",
    "index_put": "x index source accumulate",
    "put": "x index source accumulate",
}
SYNONYMS = {"src": "source", "value": "source", "values": "source", "indices": "index"}
ACCUMULATIONS = ("scatter_add", "scatter_reduce", "index_add", "index_reduce")
HALVES = (torch.float16, torch.bfloat16)

REDUCTIONS = {
    "add": torch.sum,
    "sum": torch.sum,
    "multiply": torch.prod,
    "prod": torch.prod,
    "amax": torch.amax,
    "amin": torch.amin,
}


class Contributions(NamedTuple):
    """What arrives, which of it is specified, and the place of each in the flattened target."""

    values: Tensor
    mask: Tensor
    places: Tensor


def accumulates(call: Call) -> bool:
    """Whether a write of this kind combines what meets."""
    args, kwargs = call.with_tensors(call.tensors)
    return bool(kwargs.get("accumulate") or kwargs.get("reduce") or any(a is True for a in args[3:4]))


def accumulation(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Place by place: the old entry, unless it is left out, and all that arrives there, less the unspecified."""
    name = entry.operation.name
    given, known = (arguments(name, call, tensors) for tensors in (leaves, masks))
    x, mask = given["x"], known["x"]
    arriving = contributions(name, x, given, known)
    alpha = given.get("alpha", 1)
    lists: list[list[Tensor]] = [[] for _ in range(x.numel())]
    for value, present, place in zip(
        arriving.values.reshape(-1), arriving.mask.reshape(-1), arriving.places.reshape(-1), strict=True
    ):
        if present:
            lists[int(place)].append(value if alpha == 1 else value * alpha)
    reduce, takes_part = given.get("reduce", "sum"), given.get("include_self", True)
    values, masks_out = [], []
    for old, present, others in zip(x.reshape(-1), mask.reshape(-1), lists, strict=True):
        left = others if others and not takes_part else [old, *others] if present else others
        values.append(combined(left, reduce, x.dtype) if left else torch.zeros((), dtype=x.dtype))
        masks_out.append(bool(left))
    if not values:
        return x, [mask]
    return torch.stack(values).reshape(x.shape), [torch.tensor(masks_out).reshape(x.shape)]


def arguments(name: str, call: Call, tensors: Sequence[Tensor]) -> dict[str, Any]:
    args, kwargs = call.with_tensors(tensors)
    named = {SYNONYMS.get(key, key): value for key, value in kwargs.items()}
    return dict(zip(NAMES[name].split(), args, strict=False)) | named


def contributions(name: str, x: Tensor, given: dict[str, Any], known: dict[str, Any]) -> Contributions:
    """Where everything arrives, by moving the numbers of the places as the function reads or writes them."""
    numbers, index, source, arrives = (
        torch.arange(x.numel()).reshape(x.shape),
        *(
            given["index"],
            given["source"],
            known["source"],
        ),
    )
    if name == "put":
        return Contributions(source, arrives, numbers.take(index))
    if name == "index_put":
        places = numbers[index]
        return Contributions(source.expand(places.shape), arrives.expand(places.shape), places)
    dim = given["dim"]
    if name in ("index_add", "index_reduce"):
        places = numbers.reshape(x.shape or 1).index_select(dim, index)
        shape = [index.numel() if d == dim % max(x.ndim, 1) else 1 for d in range(max(x.ndim, 1))]
        sure = known["index"].reshape(shape).expand(places.shape)
        return Contributions(source.reshape(places.shape), arrives.reshape(places.shape) & sure, places)
    if not isinstance(source, Tensor):
        source, arrives = torch.full(index.shape, source, dtype=x.dtype), torch.ones(index.shape).bool()
    used = tuple(slice(size) for size in index.shape)
    wide = tuple(slice(None) if d == dim % x.ndim else part for d, part in enumerate(used)) if x.ndim else ()
    places = numbers[wide].gather(dim, index)
    return Contributions(source[used], arrives[used] & known["index"], places)


def combined(left: list[Tensor], reduce: str, dtype: torch.dtype) -> Tensor:
    """torch's own reduction of what is left; halves in float32, means of integers rounded down."""
    vector = torch.stack(left)
    if dtype in HALVES:
        vector = vector.float()
    if reduce != "mean":
        return REDUCTIONS[reduce](vector, dim=0).to(dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return vector.mean().to(dtype)
    return torch.div(vector.sum(), len(left), rounding_mode="floor").to(dtype)
