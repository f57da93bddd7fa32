"""Rearrangements of jagged entries: batch and ragged dimension change their places, features their shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.jagged.rows import feature_dims, is_jagged
from maskgrad.semantics.stored.entries import Stored, densified, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["RULES", "permute", "reshape"]

#: What a rule returns where the result is no prefix of each sequence: its Boolean form is made.
ELSE = None


def permute(x: Jagged, order: Sequence[int]) -> Stored:
    """Dimensions in another order."""
    order = [as_dim(d, len(x.shape)) for d in order]
    if sorted(order) != list(range(len(x.shape))):
        raise RuntimeError(
            f"permute(dims): must name each of {len(x.shape)} dimensions once, found {tuple(order)}"
        )
    features = feature_dims(x)
    at = tuple([order.index(place) for place in x.pattern.at])
    moved = [features.index(d) + 1 for d in order if d in features]
    values = x.values if moved == sorted(moved) else x.values.permute(0, *moved)
    return Stored(values, x.pattern.moved(at))


def reshape(x: Jagged, shape: Sequence[int]) -> Stored | None:
    """Other features around the batch and ragged dimensions, if these stay or become one, or two again."""
    shape, old, pattern = list(shape), x.shape, x.pattern
    if -1 in shape:
        known = math.prod(size for size in shape if size != -1)
        if not known:
            return ELSE
        shape[shape.index(-1)] = math.prod(old) // known
    if math.prod(shape) != math.prod(old):
        raise RuntimeError(f"shape '{shape}' is invalid for input of size {math.prod(old)}")
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
    return Stored(x.values.reshape(x.values.shape[0], *features), pattern.moved(tuple(places)))


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


def _sizes(args: tuple[Any, ...]) -> list[int]:
    return list(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else list(args)


def _reshape(x: Jagged, *sizes: Any, shape: Any = None, size: Any = None) -> Stored | None:
    given = shape if shape is not None else size if size is not None else _sizes(sizes)
    if isinstance(given, torch.dtype) or (sizes and isinstance(sizes[0], torch.dtype)):
        dtype = given if isinstance(given, torch.dtype) else sizes[0]
        return Stored(x.values.view(dtype), x.pattern) if dtype.itemsize == x.values.dtype.itemsize else ELSE
    return reshape(x, list(given))


def _like(x: Jagged, other: Any) -> Stored | None:
    return reshape(x, shape_of(other))


def _transpose(x: Jagged, dim0: int, dim1: int) -> Stored:
    order = list(range(len(x.shape)))
    a, b = as_dim(dim0, len(order)), as_dim(dim1, len(order))
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


def _permute(x: Jagged, *dims: Any) -> Stored:
    return permute(x, _sizes(dims))


def _t(x: Jagged) -> Stored | None:
    return ELSE if len(x.shape) > 2 else _reversed(x)


def _reversed(x: Jagged) -> Stored:
    return permute(x, list(reversed(range(len(x.shape)))))


def _matrix(x: Jagged) -> Stored:
    return _transpose(x, -2, -1)


def _movedim(x: Jagged, source: Any, destination: Any) -> Stored:
    rank = len(x.shape)
    sources, goals = (
        [as_dim(d, rank) for d in ((dims,) if isinstance(dims, int) else dims)]
        for dims in (source, destination)
    )
    order = [d for d in range(rank) if d not in sources]
    for goal, origin in sorted(zip(goals, sources, strict=True)):
        order.insert(goal, origin)
    return permute(x, order)


def _unsqueeze(x: Jagged, dim: int) -> Stored:
    rank = len(x.shape)
    dim = as_dim(dim, rank + 1)
    at = tuple([place + (place >= dim) for place in x.pattern.at])
    before = len([d for d in feature_dims(x) if d < dim])
    return Stored(x.values.unsqueeze(before + 1), x.pattern.moved(at))


def _squeeze(x: Jagged, dim: Any = None) -> Stored | None:
    rank = len(x.shape)
    if dim is None:
        dims = [d for d in range(rank) if x.shape[d] == 1]
    else:
        dims = [as_dim(d, rank) for d in ((dim,) if isinstance(dim, int) else dim)]
        dims = [d for d in dims if x.shape[d] == 1]
    if any(d in x.pattern.at for d in dims):
        return ELSE
    shape = [size for d, size in enumerate(x.shape) if d not in dims]
    features = [x.shape[d] for d in feature_dims(x) if d not in dims]
    at = tuple([place - len([d for d in dims if d < place]) for place in x.pattern.at])
    assert len(shape) == len(features) + len(at)
    return Stored(x.values.reshape(x.values.shape[0], *features), x.pattern.moved(at))


def _flatten(x: Jagged, start_dim: int = 0, end_dim: int = -1) -> Stored | None:
    rank = len(x.shape)
    start, end = as_dim(start_dim, rank), as_dim(end_dim, rank)
    return reshape(x, [*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]])


def _unflatten(x: Jagged, dim: int, sizes: Sequence[int]) -> Stored | None:
    dim = as_dim(dim, len(x.shape))
    sizes = list(sizes)
    if -1 in sizes:
        sizes[sizes.index(-1)] = x.shape[dim] // math.prod(size for size in sizes if size != -1)
    if math.prod(sizes) != x.shape[dim]:
        raise RuntimeError(
            f"unflatten: Provided sizes {sizes} don't multiply up to the size of dim {dim} ({x.shape[dim]}) in the "
            "input tensor"
        )
    if dim in x.pattern.at:
        return reshape(x, [*x.shape[:dim], *sizes, *x.shape[dim + 1 :]])
    before = feature_dims(x).index(dim) + 1
    at = tuple([place + (place > dim) * (len(sizes) - 1) for place in x.pattern.at])
    values = x.values
    return Stored(
        values.reshape(*values.shape[:before], *sizes, *values.shape[before + 1 :]), x.pattern.moved(at)
    )


def _expand(x: Jagged, *sizes: Any, size: Any = None) -> Stored | None:
    wanted = list(size) if size is not None else _sizes(sizes)
    missing = len(wanted) - len(x.shape)
    if missing < 0:
        raise RuntimeError(
            f"expand: the number of sizes provided ({len(wanted)}) must be greater or equal to the number of "
            f"dimensions in the tensor ({len(x.shape)})"
        )
    at = tuple([place + missing for place in x.pattern.at])
    if any(wanted[d] not in (-1, full) for d, full in zip(at, x.pattern.sizes, strict=True)):
        return ELSE
    features = [wanted[d] for d in range(len(wanted)) if d not in at]
    values = x.values[(slice(None), *(None,) * missing)]
    return Stored(values.expand(-1, *features), x.pattern.moved(at))


def _expand_as(x: Jagged, other: Any) -> Stored | None:
    return _expand(x, *shape_of(other))


def _same(x: Jagged, *_: Any, **__: Any) -> Stored:
    return x


def rule(move: Callable[..., Stored | None], fallback: Callable[..., Any]) -> Callable[..., Any]:
    """A body that gives what ``move`` gives, or else the Boolean form."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first = "input" if "input" in kwargs else "self"
        x = args[0] if args else kwargs[first]
        if not is_jagged(x):
            return fallback(function, args, kwargs)
        named = {{"axis0": "dim0", "axis1": "dim1"}.get(k, k): v for k, v in kwargs.items() if k != first}
        found = move(x, *args[1:], **named)
        if found is ELSE and move in (_reshape, _like):  # rows have no strides that could forbid a view
            values, mask = densified(x)
            whole = Entries(values.contiguous(), mask)
            args, kwargs = ((whole, *args[1:]), kwargs) if args else (args, {**kwargs, first: whole})
        return fallback(function, args, kwargs) if found is ELSE else found

    return body


RULES: dict[str, Callable[..., Stored | None]] = {
    **dict.fromkeys(("reshape", "view"), _reshape),
    **dict.fromkeys(("reshape_as", "view_as"), _like),
    "transpose": _transpose,
    "permute": _permute,
    "t": _t,
    "T": _reversed,
    "mT": _matrix,
    "movedim": _movedim,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "flatten": _flatten,
    "unflatten": _unflatten,
    **dict.fromkeys(("expand", "broadcast_to"), _expand),
    "expand_as": _expand_as,
}
