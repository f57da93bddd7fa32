"""What meets at one place: the specified contributions in one list, with their places, which torch reduces."""

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

#: What scatter calls them.
SAME = {"add": "sum", "multiply": "prod"}


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
    present, old = arriving.mask.reshape(-1), mask.reshape(-1)
    places = arriving.places.reshape(-1)[present]
    if not given.get("include_self", True):  # the old entry, only where nothing else arrives
        old = old & (torch.bincount(places, minlength=x.numel()) == 0)
    values = torch.cat([x.reshape(-1)[old], arriving.values.reshape(-1)[present] * alpha])
    places = torch.cat([torch.arange(x.numel())[old], places])
    reduce = given.get("reduce", "sum")
    known = torch.bincount(places, minlength=x.numel()) > 0
    return combined(values, places, x, SAME.get(reduce, reduce)).reshape(x.shape), [known.reshape(x.shape)]


def arguments(name: str, call: Call, tensors: Sequence[Tensor]) -> dict[str, Any]:
    args, kwargs = call.with_tensors(tensors)
    named = {SYNONYMS.get(key, key): value for key, value in kwargs.items()}
    return dict(zip(NAMES[name].split(), args, strict=False)) | named


def contributions(name: str, x: Tensor, given: dict[str, Any], known: dict[str, Any]) -> Contributions:
    """Where everything arrives, by moving the numbers of the places as the function reads or writes them."""
    numbers = torch.arange(x.numel()).reshape(x.shape)
    index, source, arrives = given["index"], given["source"], known["source"]
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


def combined(values: Tensor, places: Tensor, x: Tensor, reduce: str) -> Tensor:
    """torch's own reduction of what is left; halves in float32."""
    wide = torch.float32 if x.dtype in HALVES else torch.int64 if x.dtype is torch.bool else x.dtype
    if reduce == "sum":
        return torch.zeros(x.numel(), dtype=wide).index_add(0, places, values.to(wide)).to(x.dtype)
    nothing = torch.zeros(x.numel(), dtype=wide)
    return nothing.scatter_reduce(0, places, values.to(wide), reduce, include_self=False).to(x.dtype)
