"""Joining, selecting from and comparing several stored tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.patterns.stored import ravel_multi_index
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import functions_named
from maskgrad.semantics.signatures import bound, paired
from maskgrad.semantics.stored.elementwise import apply
from maskgrad.semantics.stored.entries import (
    StoredEntries,
    exploded,
    flat,
    from_places,
    is_masked,
    shape_of,
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
    parts = [flat(part) for part in _all_stored(tensors)]
    models = [torch.empty(part.shape, device="meta") for part in parts]
    sizes = torch.cat(models, dim).shape  # torch raises the errors
    at, offset, moved = as_dim(dim, len(sizes)), 0, []
    for part in [part for part in parts if len(part.sizes) == len(sizes)]:  # not torch's empty vectors
        shifted = part.pattern.coordinates().clone()
        shifted[at] += offset
        offset += part.sizes[at]
        moved.append(shifted)
    return from_places(torch.cat(moved, 1), torch.cat([part.entries for part in parts]), tuple(sizes))


def _stacked(dim: int) -> Callable[..., StoredEntries]:
    """``vstack`` and ``column_stack``: vectors get another dimension."""

    def rule(tensors: Sequence[Any]) -> StoredEntries:
        return cat([unsqueeze(t, dim) if len(t.shape) == 1 else t for t in _all_stored(tensors)], dim)

    return rule


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
    condition, *sides = given
    values = [o.values if is_masked(o) else o for o in given]
    if values[0].dtype != torch.bool:
        raise TypeError(f"condition must be a Boolean tensor, found {values[0].dtype}; use condition != 0")
    stored = [side for side in sides if isinstance(side, StoredEntries)]
    if not isinstance(condition, StoredEntries) and len(stored) < 2:
        raise UnsupportedLayoutError(
            "where() of a sparse and a dense side", stored[0].pattern.layout, tuple(stored[0].shape)
        )
    # the rank of an operand matters for the dtype, not its size
    models = [v.new_empty((0,) * v.ndim) if isinstance(v, Tensor) else v for v in values]
    chosen: Any = torch.where(*models)
    dtype = chosen.dtype
    shape = torch.broadcast_shapes(*map(shape_of, given))
    negated = (
        StoredEntries(~condition.values, condition.pattern)
        if isinstance(condition, StoredEntries)
        else Entries(~condition.values, condition.mask)
        if isinstance(condition, Entries)
        else ~condition
    )
    (places, entries), (others, partners) = (
        _chosen(test, side, dtype, shape) for test, side in zip((condition, negated), sides, strict=True)
    )
    return from_places(torch.cat([places, others], 1), torch.cat([entries, partners]), tuple(shape))


def _chosen(condition: Any, side: Any, dtype: torch.dtype, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Indices and entries of one side at which the condition is specified and true."""

    def run(values: list[Any]) -> tuple[Tensor, Tensor]:
        kept, value = values
        return tuple(torch.broadcast_tensors(kept, torch.as_tensor(value, dtype=dtype, device=kept.device)))

    kept, value = (expand(part, tuple(shape)) for part in apply(run, [condition, side]))
    return value.pattern.coordinates()[:, kept.entries], value.entries[kept.entries]


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
    "vstack": _stacked(0),
    "column_stack": _stacked(1),
}
BETWEEN: dict[str, Callable[..., Any]] = {"where": _where, "equal": _equal, "allclose": _equal}
