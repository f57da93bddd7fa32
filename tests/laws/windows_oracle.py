"""Pooling: torch's own, of the entries and of indicators, which count them; interpolation, weight by weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.slices import arguments_of

__all__ = ["interpolation", "pooling"]

Result = tuple[Any, list[Tensor]]


def pooling(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Average, power and maximum pooling, and the inverse of the last."""
    name = entry.operation.name
    if "unpool" in name:
        return unpooled(entry, call, leaves, masks)
    x, mask = leaves[0], masks[0]

    def pooled(data: Tensor) -> Any:
        args, kwargs = call.with_tensors([data, *leaves[1:]])
        return entry.function(*args, **kwargs)

    if "max" in name:
        lowest = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        found, known = pooled(torch.where(mask, x, lowest)), parts_of(pooled(mask.to(x.dtype)))[0] > 0
        return found, [known for _ in parts_of(found)]
    if "lp_pool" in name:
        names = "input norm_type kernel_size stride ceil_mode"
        return powers(entry, arguments_of(entry, call, leaves, names), mask)
    names = "input kernel_size stride padding ceil_mode count_include_pad divisor_override"
    given = {} if "adaptive" in name else arguments_of(entry, call, leaves, names)
    if given.get("divisor_override"):
        return pooled(torch.where(mask, x, 0)), [pooled(mask.double()) != 0]
    return means(x, mask, pooled)


def means(x: Tensor, mask: Tensor, pooled: Callable[[Tensor], Tensor]) -> Result:
    """Of what is left of each window, and of the padding that counts."""
    some, every = pooled(mask.double()), pooled(torch.ones_like(mask).double())
    found = pooled(torch.where(mask, x, 0).double()) / torch.where(some > 0, some + 1 - every, 1)
    exact = found if x.is_floating_point() else found.round(decimals=9).trunc()
    return exact.to(x.dtype), [some > 0]


def powers(entry: Entry, given: dict[str, Any], mask: Tensor) -> Result:
    """torch multiplies the mean of the powers by the size of the kernel."""
    x, power, rank = given["input"], given["norm_type"], int(entry.name[-2])
    kernel = torch.as_tensor(given["kernel_size"]).reshape(-1).expand(rank)

    def averaged(data: Tensor) -> Tensor:
        average = getattr(F, f"avg_pool{rank}d")
        return average(data, kernel.tolist(), given.get("stride"), 0, given.get("ceil_mode", False))

    known = averaged(mask.double()) > 0
    total = averaged(torch.where(mask, torch.where(mask, x, 1).pow(power), 0)) * int(kernel.prod())
    total = torch.where(known, total, 1)
    return (total.sign() * total.abs().relu()).pow(1 / power), [known]


def unpooled(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Writes one entry after the other."""
    (x, indices, *_), (mask, indexed, *_) = leaves, masks
    rank = int(entry.name[-2])
    args, kwargs = call.with_tensors(leaves)
    dense = entry.function(*args, **kwargs)
    if not x.numel():
        return dense, [torch.ones(dense.shape, dtype=torch.bool)]
    room = dense.shape[-rank:].numel()
    places, known, sure = (t.reshape(-1, x.shape[-rank:].numel()) for t in (indices, mask, indexed))
    results, masks_out = [], []
    for row, entries in enumerate(torch.where(mask, x, 0).reshape(places.shape)):
        chosen = places[row][sure[row]]
        # torch sends a place's gradient to all who wrote there
        results.append(torch.zeros(room, dtype=x.dtype).scatter(0, chosen, entries[sure[row]]))
        masks_out.append(torch.ones(room, dtype=torch.bool).scatter(0, chosen, known[row][sure[row]]))
    return torch.stack(results).reshape(dense.shape), [torch.stack(masks_out).reshape(dense.shape)]


def interpolation(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """The weights are torch's derivatives: a result needs every entry from which one comes (all, where to look too)."""
    args, kwargs = call.with_tensors(leaves)
    values = entry.function(*args, **kwargs)
    x, mask = leaves[0], masks[0]
    if entry.variant == "area":
        return means(x, mask, lambda data: entry.function(data, *args[1:], **kwargs))
    known = torch.ones(values.shape, dtype=torch.bool)
    if mask.all() and len(masks) == 1:
        return values, [known]

    def interpolated(data: Tensor) -> Tensor:
        args, kwargs = call.with_tensors([data, *(leaf.detach() for leaf in leaves[1:])])
        return entry.function(*args, **kwargs)

    # one channel of one image at a time: only there are there weights
    for n in range(x.shape[0]):
        for place in (~mask[n].all(0)).nonzero():
            probe = torch.zeros(x.shape, dtype=x.dtype)
            probe[(n, slice(None), *place)] = 1
            weight = interpolated(probe)[n].abs() > 1e-9
            missing = ~mask[(n, slice(None), *place)]
            known[n] &= ~(weight & missing.reshape(-1, *[1] * (x.ndim - 2)))
    if len(masks) > 1:
        known &= masks[1].all(-1).unsqueeze(1)
    return values, [known]
