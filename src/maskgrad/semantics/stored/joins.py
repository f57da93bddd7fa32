"""Joining, selecting from and comparing several stored tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.mode import TRACED, mode
from maskgrad.patterns.stored import ravel_multi_index
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import functions_named
from maskgrad.semantics.signatures import bound, paired
from maskgrad.semantics.stored.elementwise import apply, same_pattern
from maskgrad.semantics.stored.entries import (
    StoredEntries,
    exploded,
    flat,
    from_places,
    is_masked,
    shape_of,
    with_values,
)
from maskgrad.semantics.stored.views import expand, unsqueeze

__all__ = ["BETWEEN", "RULES", "where_arguments"]


def _all_stored(tensors: Sequence[Any]) -> list[StoredEntries]:
    if not all(isinstance(t, StoredEntries) for t in tensors):
        layout = next((t.pattern.layout for t in tensors if isinstance(t, StoredEntries)), torch.sparse_coo)
        raise UnsupportedLayoutError("joining sparse and dense tensors", layout)
    return list(tensors)


def cat(tensors: Sequence[Any], dim: int = 0) -> StoredEntries:
    """Concatenate stored tensors."""
    parts = _all_stored(tensors)
    for place, part in enumerate(parts):
        if not part.shape:
            raise RuntimeError(f"zero-dimensional tensor (at position {place}) cannot be concatenated")
    at = as_dim(dim, len(parts[0].shape))
    shapes = [[s for d, s in enumerate(part.shape) if d != at] for part in parts]
    if any(shape != shapes[0] for shape in shapes):
        raise RuntimeError(
            f"cat: sizes must match except in dimension {at}, found {[tuple(p.shape) for p in parts]}"
        )
    sparse = len(parts[0].sizes)
    divided_alike = all(len(part.sizes) == sparse for part in parts)
    if divided_alike and at >= sparse and same_pattern(parts):
        entries = torch.cat([part.entries for part in parts], at - sparse + 1)
        return StoredEntries(parts[0].pattern.gathered(entries), parts[0].pattern)
    if not divided_alike or at >= sparse:
        parts = [flat(part) for part in parts]
    moved, offset = [], 0
    for part in parts:
        shifted = part.pattern.coordinates().clone()
        shifted[at] += offset
        offset += part.sizes[at]
        moved.append(shifted)
    sizes = (*parts[0].sizes[:at], offset, *parts[0].sizes[at + 1 :])
    entries = torch.cat([part.entries for part in parts])
    return from_places(torch.cat(moved, 1), entries, sizes, parts[0].pattern)


def _vstack(tensors: Sequence[Any]) -> StoredEntries:
    return cat([unsqueeze(t, 0) if len(t.shape) == 1 else t for t in _all_stored(tensors)], 0)


def _column_stack(tensors: Sequence[Any]) -> StoredEntries:
    return cat([unsqueeze(t, 1) if len(t.shape) == 1 else t for t in _all_stored(tensors)], 1)


def where_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any] | None:
    """The condition and the two sides; None unless all are given."""
    names = ("input", "condition", "other") if function is Tensor.where else ("condition", "input", "other")
    given = paired(names, args) | {{"self": "input"}.get(k, k): v for k, v in kwargs.items()}
    return None if len(given) < 3 else [given[name] for name in ("condition", "input", "other")]


def _where(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """With two stored sides, or a stored condition; else the result would be dense."""
    given = where_arguments(function, args, kwargs)
    if given is None:
        raise TypeError("where of a MaskedTensor needs a condition and two sides")
    condition, a, b = given
    values = condition.values if is_masked(condition) else condition
    if values.dtype != torch.bool:
        raise TypeError(f"condition must be a Boolean tensor, found {values.dtype}; use condition != 0")
    kinds = [isinstance(side, StoredEntries) for side in (a, b)]
    if not isinstance(condition, StoredEntries) and not all(kinds):
        stored = a if kinds[0] else b
        raise UnsupportedLayoutError(
            "where() of a sparse and a dense side", stored.pattern.layout, tuple(stored.shape)
        )
    dtype = _dtype_of_both(*[side.values if is_masked(side) else side for side in (a, b)])
    shape = torch.broadcast_shapes(*[shape_of(o) for o in (condition, a, b)])
    negated = with_values(condition, ~values) if is_masked(condition) else ~values
    sides = [_chosen(condition, a, dtype, shape), _chosen(negated, b, dtype, shape)]
    coordinates = torch.cat([side.pattern.coordinates() for side in sides], 1)
    entries = torch.cat([side.entries for side in sides])
    model = next(o for o in (a, b, condition) if isinstance(o, StoredEntries)).pattern
    return from_places(coordinates, entries, tuple(shape), model)


def _dtype_of_both(a: Any, b: Any) -> torch.dtype:
    """``torch.result_type``, which torch.compile cannot trace."""
    if mode() not in TRACED:
        return torch.result_type(a, b)
    # the rank of an operand matters, not its size
    a, b = (x.new_empty((0,) * x.ndim) if isinstance(x, Tensor) else x for x in (a, b))
    model = a if isinstance(a, Tensor) else b
    return torch.where(model.new_empty((0,) * model.ndim, dtype=torch.bool), a, b).dtype


def _chosen(condition: Any, side: Any, dtype: torch.dtype, shape: torch.Size) -> StoredEntries:
    """The entries of one side at which the condition is specified and true."""

    def run(values: list[Any]) -> tuple[Tensor, Tensor]:
        kept, value = values
        value = torch.as_tensor(value, dtype=dtype, device=kept.device).to(dtype)
        return tuple(torch.broadcast_tensors(kept, value))

    kept, value = apply(run, [condition, side])
    kept, value = (
        flat(part if part.shape == shape else expand(part, tuple(shape))) for part in (kept, value)
    )
    chosen = kept.entries
    return from_places(value.pattern.coordinates()[:, chosen], value.entries[chosen], tuple(shape))


def _in_order(x: Any) -> tuple[Tensor, Tensor]:
    """Row-major indices of the specified positions, ascending, and their entries."""
    if isinstance(x, StoredEntries):
        coordinates, entries, sizes = exploded(x)
        keys, order = torch.sort(ravel_multi_index(coordinates, sizes))
        return keys, entries[order]
    if isinstance(x, Entries):
        keys = x.mask.reshape(-1).nonzero().squeeze(1)
        return keys, x.values.reshape(-1)[keys]
    return torch.arange(x.numel(), device=x.device), x.reshape(-1)


def _equal(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """``torch.equal`` and ``torch.allclose``: patterns are compared exactly, in any layout."""
    arguments = bound("input other rtol atol equal_nan", args, kwargs)
    a, b = arguments.pop("input"), arguments.pop("other")
    if shape_of(a) != shape_of(b):
        if function in functions_named("equal")[0]:
            return False
        raise RuntimeError(
            f"allclose: shapes must be equal, found {tuple(shape_of(a))} and {tuple(shape_of(b))}"
        )
    (places, entries), (others, partners) = _in_order(a), _in_order(b)
    return torch.equal(places, others) and bool(function(entries, partners, **arguments))


#: Rules whose first argument has no name.
RULES: dict[str, Callable[..., Any]] = {
    "cat": cat,
    "stack": lambda tensors, dim=0: cat([unsqueeze(t, dim) for t in _all_stored(tensors)], dim),
    "hstack": lambda tensors: cat(tensors, 0 if len(_all_stored(tensors)[0].shape) == 1 else 1),
    "vstack": _vstack,
    "column_stack": _column_stack,
}
BETWEEN: dict[str, Callable[..., Any]] = {"where": _where, "equal": _equal, "allclose": _equal}
