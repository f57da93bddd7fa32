"""Order statistics: torch's on what is left of each slice."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.comparison import NUMBER
from tests.laws.deletion_oracle import nothing_is_left
from tests.laws.slices import Part, Result, arguments_of, original_positions, per_slice

__all__ = ["ORDER_STATISTICS"]


def selection(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """One entry of each slice, and its position in the original one."""
    name = entry.name
    arguments = arguments_of(
        entry, call, leaves, "input k dim keepdim" if name == "kthvalue" else "input dim keepdim"
    )
    x, mask = arguments["input"], masks[0]
    dim = arguments.get("dim", None if "median" in name else -1)
    number = [arguments["k"]] if name == "kthvalue" else []
    needed = number[0] if number else 1
    along = [] if dim is None else [0]

    def rule(vector: Tensor, present: Tensor) -> list[Part]:
        where, enough = original_positions(present), present.sum() >= needed
        vector = vector[present] if enough else vector.detach() * 0
        parts = parts_of(entry.function(vector, *number, *along))
        values = [where[part] if i == 1 and enough else part for i, part in enumerate(parts)]
        return [(part.reshape(1), enough.reshape(1)) for part in values]

    if dim is None:
        ((value, known),) = rule(x.reshape(-1), mask.reshape(-1))
        if not x.is_floating_point():  # of no integers torch gives the least one
            return value.squeeze(0), [known.squeeze(0)]
        found = value.squeeze(0) if known else nothing_is_left(entry.function, x)
        return found, [NUMBER]
    parts = per_slice(rule, x, mask, dim)
    if not arguments.get("keepdim", False) and x.ndim:
        parts = [(value.squeeze(dim), known.squeeze(dim)) for value, known in parts]
    return getattr(torch.return_types, name)([value for value, _ in parts]), [known for _, known in parts]


def quantiles(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """One or more numbers of each slice; their dimension comes first."""
    arguments = arguments_of(entry, call, leaves, "input q dim keepdim")
    x, mask, q = arguments["input"], masks[0], arguments["q"]
    dim, keepdim = arguments.get("dim"), arguments.get("keepdim", False)
    several = isinstance(q, Tensor) and q.ndim > 0
    options = {k: v for k, v in arguments.items() if k == "interpolation"}

    def rule(vector: Tensor, present: Tensor) -> list[Part]:
        any_left = present.any()
        found = entry.function(vector[present] if any_left else vector.detach() * 0, q, 0, **options).reshape(
            -1
        )
        return [(found, any_left.expand(found.shape) & (masks[1].reshape(-1) if len(masks) > 1 else True))]

    if dim is None or x.ndim == 0:
        ((values, known),) = rule(x.reshape(-1), mask.reshape(-1))
        kept = [1] * x.ndim if keepdim else []
    else:
        ((values, known),) = per_slice(rule, x, mask, dim)
        values, known = values.movedim(dim, 0), known.movedim(dim, 0)
        kept = [
            1 if d == dim % x.ndim else size for d, size in enumerate(x.shape) if keepdim or d != dim % x.ndim
        ]
    shape = [*([len(values)] if several else []), *kept]
    return values.reshape(shape), [known.reshape(shape)]


ORDER_STATISTICS = {
    **dict.fromkeys(["median", "nanmedian", "kthvalue", "mode"], selection),
    **dict.fromkeys(["quantile", "nanquantile"], quantiles),
}
