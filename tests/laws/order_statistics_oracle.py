"""Order statistics: torch's on what is left of each slice."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.deletion_oracle import reduce_by_deletion
from tests.laws.slices import Part, Result, arguments_of, per_slice

__all__ = ["ORDER_STATISTICS"]


def selection(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """One entry of each slice, and its position in the original one."""
    names = "input k dim keepdim" if entry.name == "kthvalue" else "input dim keepdim"
    arguments = arguments_of(entry, call, leaves, names)
    if "median" not in entry.name:
        arguments.setdefault("dim", -1)
    return reduce_by_deletion(entry.name, entry.function, arguments.pop("input"), masks[0], **arguments)


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
