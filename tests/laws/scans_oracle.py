"""Scans, differences and integrals: torch's on what is left of each slice, or on NaN in place of what is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.slices import Part, Result, arguments_of, in_their_places, original_positions, per_slice

__all__ = ["SCANS", "scan"]


def scan(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Each slice by deletion (of softmax, too): results, and positions among them, go where their entries stood."""
    arguments = arguments_of(entry, call, leaves, "input dim")
    del arguments["input"]
    rule = in_their_places(lambda left: entry.function(left, 0, **arguments))
    parts = per_slice(rule, leaves[0], masks[0], arguments.pop("dim"))
    values = [part for part, _ in parts]
    kind = getattr(torch.return_types, entry.name, None)
    return (values[0] if kind is None else kind(values)), [mask for _, mask in parts]


def difference(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """NaN in place of unspecified entries tells which results read them."""
    args, kwargs = call.with_tensors(leaves)
    values = entry.function(*args, **kwargs)
    holes = [
        torch.where(
            m, torch.ones(leaf.shape, dtype=torch.float64).cumsum(-1) if leaf.ndim else 1.0, torch.nan
        )
        for leaf, m in zip(leaves, masks, strict=True)
    ]
    args, kwargs = call.with_tensors(holes)
    return values, [~part.isnan() for part in parts_of(entry.function(*args, **kwargs))]


def integral(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Each slice without the points of which a coordinate is missing."""
    arguments = arguments_of(entry, call, leaves, "y x")
    dim, dx = arguments.get("dim", -1), arguments.get("dx")
    y, mask = leaves[0], masks[0]
    x = arguments.get("x")
    if x is not None:
        if x.ndim == 1:
            x, x_mask = (
                t.reshape([-1 if d == dim % y.ndim else 1 for d in range(y.ndim)]) for t in (x, masks[1])
            )
        else:
            x_mask = masks[1]
        y, x = torch.broadcast_tensors(y, x)
        mask = mask & x_mask
    # the two vectors of a slice side by side
    both = y if x is None else torch.cat([y, x], dim)
    known = mask if x is None else torch.cat([mask, mask], dim)

    def rule(vector: Tensor, present: Tensor) -> list[Part]:
        ordinates, *abscissas = vector.chunk(1 if x is None else 2)
        left = present[: len(ordinates)]
        options: dict[str, Any] = {} if dx is None else {"dx": dx}
        found = entry.function(ordinates[left], *(a[left] for a in abscissas), **options)
        if "cumulative" not in entry.name:
            return [(found.reshape(1), left.any().reshape(1))]
        # the first point that is left ends no interval
        ends = original_positions(left)[1:] - 1
        size = len(left) - 1
        values = torch.zeros(size, dtype=found.dtype).index_put((ends,), found)
        return [(values, torch.zeros(size, dtype=torch.bool).index_put((ends,), torch.tensor(True)))]

    ((values, specified),) = per_slice(rule, both, known, dim)
    if "cumulative" not in entry.name:
        values, specified = values.squeeze(dim), specified.squeeze(dim)
    return values, [specified]


SCANS = {
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"], scan),
    **dict.fromkeys(["diff", "gradient"], difference),
    **dict.fromkeys(["trapezoid", "cumulative_trapezoid"], integral),
}
