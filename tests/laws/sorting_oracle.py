"""Sorting, distinct entries, membership, search, histograms: torch's on what is left."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.slices import Part, Result, arguments_of, original_positions, padded, per_slice

__all__ = ["SORTING"]

#: Which results are positions.
POSITIONS = {"sort": (1,), "argsort": (0,), "msort": (), "topk": (1,)}


def sorting(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """What is left of each slice, sorted; behind it nothing is specified."""
    name = entry.name
    arguments = arguments_of(
        entry, call, leaves, "input k dim largest sorted" if name == "topk" else "input dim descending"
    )
    x, dim = arguments.pop("input"), arguments.pop("dim", 0 if name == "msort" else -1)
    k = arguments.pop("k", None)
    options = {} if name == "msort" else {"dim": 0}

    def rule(vector: Tensor, present: Tensor) -> list[Part]:
        left, where = vector[present], original_positions(present)
        slots = len(vector) if k is None else k
        number = [] if k is None else [min(k, len(left))]
        found = parts_of(entry.function(left, *number, **options, **arguments))
        return [padded(where[part] if i in POSITIONS[name] else part, slots) for i, part in enumerate(found)]

    parts = per_slice(rule, x, masks[0], dim)
    values = [part for part, _ in parts]
    kind = getattr(torch.return_types, name, None)
    return (values[0] if kind is None else kind(values)), [mask for _, mask in parts]


def distinct(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Of the specified entries, or of the slices that are specified; the inverse goes where they stood."""
    _, kwargs = call.with_tensors(leaves)
    (x,), (mask,) = leaves, masks
    dim = kwargs.get("dim")
    if dim is None:
        left = x[mask]
    else:
        mask = mask.movedim(dim, 0).flatten(1).all(1) if x.ndim > 1 else mask
        left = x.index_select(dim, original_positions(mask))
    found = entry.function(left, **kwargs)
    if isinstance(found, Tensor):
        return found, [torch.ones(found.shape, dtype=torch.bool)]
    values, known = list(found), [torch.ones(part.shape, dtype=torch.bool) for part in found]
    if kwargs.get("return_inverse"):
        values[1] = torch.zeros(mask.shape, dtype=torch.int64).masked_scatter(mask, found[1])
        known[1] = mask
    return tuple(values), known


def isin(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    args, kwargs = call.with_tensors([leaves[0], leaves[1][masks[1]]])
    return entry.function(*args, **kwargs), [masks[0]]


def search(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Each row of the sequence without its gaps; a sorter first says in which order it is."""
    names = "input boundaries" if entry.name == "bucketize" else "sorted_sequence input"
    arguments = arguments_of(entry, call, leaves, names)
    known = arguments_of(entry, call, masks, names)
    side = {k: v for k, v in arguments.items() if k in ("right", "side", "out_int32")}
    key = names.split()[1 if entry.name == "bucketize" else 0]
    sequence, present = arguments[key], known[key]
    wanted, mask = arguments["input"], known["input"]
    if arguments.get("sorter") is not None:
        sequence, present = (t.gather(-1, arguments["sorter"]) for t in (sequence, present))
        present = present & known["sorter"]
    if sequence.ndim == 1:
        return torch.searchsorted(sequence[present], wanted, **side), [mask]
    rows = [t.reshape(-1, t.shape[-1]) for t in (sequence, present, wanted)]
    found = [torch.searchsorted(s[p], w.contiguous(), **side) for s, p, w in zip(*rows, strict=True)]
    return torch.stack(found).reshape(wanted.shape), [mask]


def histogram(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Every bin is known, even if nothing is in it."""
    args, kwargs = call.with_tensors(list(range(len(leaves))))
    which = dict(enumerate(leaves))
    # by number: the input comes first, a weight has the input's points, edges stay as they are
    weight = next((kwargs[key] for key in ("weight", "weights") if kwargs.get(key) is not None), None)
    mask = masks[0].all(-1) if entry.name == "histogramdd" else masks[0]
    if weight is not None:
        mask = mask & masks[weight]
        which[weight] = leaves[weight][mask]
    which[0] = leaves[0][mask]
    args, kwargs = call.with_tensors([which[i] for i in range(len(leaves))])
    values = entry.function(*args, **kwargs)
    return values, [torch.ones(part.shape, dtype=torch.bool) for part in parts_of(values)]


SORTING = {
    **dict.fromkeys(["sort", "argsort", "msort", "topk"], sorting),
    **dict.fromkeys(["unique", "unique_consecutive"], distinct),
    **dict.fromkeys(["searchsorted", "bucketize"], search),
    "isin": isin,
    **dict.fromkeys(["histc", "histogram", "histogramdd", "bincount"], histogram),
}
