"""Rearrangements of jagged entries: batch and ragged dimension change their places, features their shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.jagged.rows import feature_dims, is_jagged
from maskgrad.semantics.shapes import order_after, shape_after
from maskgrad.semantics.sparse.entries import SparseEntries, densified

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["BY_SHAPE", "RULES", "permute", "reshape", "rule"]

#: What a rule returns where the result is no prefix of each sequence: its Boolean form is made.
ELSE = None


def permute(x: Jagged, order: Sequence[int]) -> SparseEntries:
    """Dimensions in another order."""
    features = feature_dims(x)
    at = tuple([order.index(place) for place in x.pattern.at])
    moved = [features.index(d) + 1 for d in order if d in features]
    values = x.values if moved == sorted(moved) else x.values.permute(0, *moved)
    return SparseEntries(values, x.pattern.moved(at))


def reshape(x: Jagged, shape: Sequence[int]) -> SparseEntries | None:
    """Other features around the batch and ragged dimensions, if these stay or become one, or two again."""
    shape, old, pattern = list(shape), x.shape, x.pattern
    inner, number = list(pattern.frame.shape), pattern.frame.numel()
    places = None
    if not pattern.is_flat:
        places = _kept(shape, old, sorted(pattern.at))
        if places is not None:
            places = [places[sorted(pattern.at).index(place)] for place in pattern.at]
    first, count = pattern.at[0], len(pattern.at)
    if places is None and pattern.at == tuple(range(first, first + count)):
        outer, behind = math.prod(old[:first]), math.prod(old[first + count :])
        for sizes in (inner, [number]) if pattern.is_flat else ([number],):
            places = places or _kept(shape, [outer, *sizes, behind], list(range(1, len(sizes) + 1)))
    if places is None:
        return ELSE
    features = [size for d, size in enumerate(shape) if d not in places]
    return SparseEntries(x.values.reshape(x.values.shape[0], *features), pattern.moved(tuple(places)))


def _kept(shape: list[int], old: Sequence[int], places: list[int]) -> list[int] | None:
    """Where the dimensions of ``old`` at ``places``, ascending, are found in a new shape; None if they are not."""
    found, start, position = [], 0, 0
    for place in places:
        wanted, product = math.prod(old[start:place]), 1
        while position < len(shape) and (product != wanted or shape[position] != old[place]):
            product *= shape[position]
            position += 1
        if position == len(shape) or product != wanted:
            return None
        found.append(position)
        start, position = place + 1, position + 1
    return found if math.prod(shape[position:]) == math.prod(old[start:]) else None


def _rearranged(function: Callable[..., Any], x: Jagged, *args: Any, **kwargs: Any) -> SparseEntries | None:
    """``transpose``, ``movedim``, ``x.T``, …: dimensions in another order."""
    return permute(x, order_after(function, len(x.shape), *args, **kwargs))


def _reshaped(function: Callable[..., Any], x: Jagged, *args: Any, **kwargs: Any) -> SparseEntries | None:
    """``view``, ``flatten``, ``reshape_as``, …: other sizes; or, of ``view``, another dtype."""
    dtype = args[0] if args else kwargs.get("dtype")
    if isinstance(dtype, torch.dtype):
        return (
            SparseEntries(x.values.view(dtype), x.pattern)
            if dtype.itemsize == x.values.dtype.itemsize
            else ELSE
        )
    return reshape(x, shape_after(function, x.shape, *args, **kwargs))


def _unsqueeze(x: Jagged, dim: int) -> SparseEntries:
    rank = len(x.shape)
    dim = as_dim(dim, rank + 1)
    at = tuple([place + (place >= dim) for place in x.pattern.at])
    before = len([d for d in feature_dims(x) if d < dim])
    return SparseEntries(x.values.unsqueeze(before + 1), x.pattern.moved(at))


def _squeeze(x: Jagged, dim: Any = None) -> SparseEntries | None:
    rank = len(x.shape)
    if dim is None:
        dims = [d for d in range(rank) if x.shape[d] == 1]
    else:
        dims = [as_dim(d, rank) for d in ((dim,) if isinstance(dim, int) else dim)]
        dims = [d for d in dims if x.shape[d] == 1]
    if any(d in x.pattern.at for d in dims):
        return ELSE
    features = [x.shape[d] for d in feature_dims(x) if d not in dims]
    at = tuple([place - len([d for d in dims if d < place]) for place in x.pattern.at])
    return SparseEntries(x.values.reshape(x.values.shape[0], *features), x.pattern.moved(at))


def _expanded(function: Callable[..., Any], x: Jagged, *args: Any, **kwargs: Any) -> SparseEntries | None:
    """``expand``, ``expand_as`` and ``broadcast_to``."""
    wanted = shape_after(function, x.shape, *args, **kwargs)
    missing = len(wanted) - len(x.shape)
    at = tuple([place + missing for place in x.pattern.at])
    if any(wanted[d] != full for d, full in zip(at, x.pattern.sizes, strict=True)):
        return ELSE
    features = [wanted[d] for d in range(len(wanted)) if d not in at]
    values = x.values[(slice(None), *(None,) * missing)]
    return SparseEntries(values.expand(-1, *features), x.pattern.moved(at))


def rule(name: str, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """A body that gives what the rule of this name gives, or else the Boolean form."""
    move, asks = (BY_SHAPE[name], True) if name in BY_SHAPE else (RULES[name], False)

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first = "input" if "input" in kwargs else "self"
        x = args[0] if args else kwargs[first]
        if not is_jagged(x):
            return fallback(function, args, kwargs)
        named = {k: v for k, v in kwargs.items() if k != first}
        found = move(function, x, *args[1:], **named) if asks else move(x, *args[1:], **named)
        if found is ELSE and move is _reshaped:  # rows have no strides that could forbid a view
            values, mask = densified(x)
            whole = Entries(values.contiguous(), mask)
            args, kwargs = ((whole, *args[1:]), kwargs) if args else (args, {**kwargs, first: whole})
        return fallback(function, args, kwargs) if found is ELSE else found

    return body


#: Rules that ask PyTorch what the function that was called makes of the shape.
BY_SHAPE: dict[str, Callable[..., SparseEntries | None]] = {
    **dict.fromkeys(("transpose", "permute", "t", "T", "mT", "movedim"), _rearranged),
    **dict.fromkeys(("reshape", "view", "reshape_as", "view_as", "flatten", "unflatten"), _reshaped),
    **dict.fromkeys(("expand", "broadcast_to", "expand_as"), _expanded),
}
#: Rules that read the arguments themselves.
RULES: dict[str, Callable[..., SparseEntries | None]] = {"unsqueeze": _unsqueeze, "squeeze": _squeeze}
