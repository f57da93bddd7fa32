"""Rearrangements of jagged entries: permuting batch and ragged dimension, reshaping features, joins.

A rule returns None if the result is not a prefix of each sequence; then the Boolean form is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from maskgrad.mode import can_read, mode
from maskgrad.patterns.jagged import same_lengths
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.jagged.rows import (
    Call,
    aligned,
    check_frames,
    feature_dims,
    is_jagged,
    of_lengths,
)
from maskgrad.semantics.shapes import order_after, shape_after
from maskgrad.semantics.stored.entries import StoredEntries, densified, is_masked
from maskgrad.semantics.stored.joins import where_arguments

if TYPE_CHECKING:
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["RULES", "cat", "masked_fill", "rearranged", "stack", "unsqueeze", "where"]


def reshape(x: Jagged, shape: Sequence[int]) -> StoredEntries | None:
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
        return None
    features = [size for d, size in enumerate(shape) if d not in places]
    return StoredEntries(x.values.reshape(x.values.shape[0], *features), pattern.moved(tuple(places)))


def _kept(shape: list[int], old: Sequence[int], places: list[int]) -> list[int] | None:
    """Positions in a new shape of the dimensions of ``old`` at ``places``, ascending; None if they are not found."""
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


def _rearranged(function: Callable[..., Any], x: Jagged, *args: Any, **kwargs: Any) -> StoredEntries:
    """Dimensions in another order."""
    order, features = order_after(function, len(x.shape), *args, **kwargs), feature_dims(x)
    moved = [features.index(d) + 1 for d in order if d in features]
    values = x.values if moved == sorted(moved) else x.values.permute(0, *moved)
    return StoredEntries(values, x.pattern.moved(tuple([order.index(place) for place in x.pattern.at])))


def _reshaped(function: Callable[..., Any], x: Jagged, *args: Any, **kwargs: Any) -> StoredEntries | None:
    """``view``, ``flatten``, ``reshape_as``, …: other sizes; or, of ``view``, another dtype."""
    dtype = args[0] if args else kwargs.get("dtype")
    if isinstance(dtype, torch.dtype):
        fits = dtype.itemsize == x.values.dtype.itemsize
        return StoredEntries(x.values.view(dtype), x.pattern) if fits else None
    return reshape(x, shape_after(function, x.shape, *args, **kwargs))


def unsqueeze(x: Jagged, dim: int) -> StoredEntries:
    """A new dimension of size 1, of features."""
    rank = len(x.shape)
    dim = as_dim(dim, rank + 1)
    at = tuple([place + (place >= dim) for place in x.pattern.at])
    before = len([d for d in feature_dims(x) if d < dim])
    return StoredEntries(x.values.unsqueeze(before + 1), x.pattern.moved(at))


def _squeeze(_: Any, x: Jagged, dim: Any = None) -> StoredEntries | None:
    rank = len(x.shape)
    if dim is None:
        dims = [d for d in range(rank) if x.shape[d] == 1]
    else:
        dims = [as_dim(d, rank) for d in ((dim,) if isinstance(dim, int) else dim)]
        dims = [d for d in dims if x.shape[d] == 1]
    if any(d in x.pattern.at for d in dims):
        return None
    features = [x.shape[d] for d in feature_dims(x) if d not in dims]
    at = tuple([place - len([d for d in dims if d < place]) for place in x.pattern.at])
    return StoredEntries(x.values.reshape(x.values.shape[0], *features), x.pattern.moved(at))


def _expanded(function: Callable[..., Any], x: Jagged, *args: Any, **kwargs: Any) -> StoredEntries | None:
    wanted = shape_after(function, x.shape, *args, **kwargs)
    missing = len(wanted) - len(x.shape)
    at = tuple([place + missing for place in x.pattern.at])
    if any(wanted[d] != full for d, full in zip(at, x.pattern.sizes, strict=True)):
        return None
    features = [wanted[d] for d in range(len(wanted)) if d not in at]
    values = x.values[(slice(None), *(None,) * missing)]
    return StoredEntries(values.expand(-1, *features), x.pattern.moved(at))


def _together(parts: Any) -> bool:
    """Return whether all parts are jagged, with the same lengths and dimensions."""
    if not parts or not all(is_jagged(part) for part in parts):
        return False
    first = parts[0]
    return all(
        part.pattern.at == first.pattern.at
        and part.pattern.frame.shape == first.pattern.frame.shape
        and len(part.shape) == len(first.shape)
        and same_lengths(first.pattern, part.pattern)
        for part in parts[1:]
    )


def cat(call: Call) -> Any:
    """Along features, if all have the same lengths; along the one batch dimension always."""
    given = call.bound("tensors dim")
    parts, dim = given["tensors"], given.get("dim", 0)
    if not all(is_jagged(part) for part in parts):
        return None
    first = parts[0]
    dim = as_dim(dim, len(first.shape))
    features = feature_dims(first)
    if dim in features:
        if not _together(parts):
            return None
        return StoredEntries(torch.cat([p.values for p in parts], features.index(dim) + 1), first.pattern)
    patterns = [part.pattern for part in parts]
    fits = len(first.pattern.at) == 2 and dim == first.pattern.at[0]
    if not fits or any(p.at != first.pattern.at or p.longest != first.pattern.longest for p in patterns):
        return None
    if not (mode() == "graph" or all(can_read(p.offsets) for p in patterns)):
        return None
    sizes = (sum(p.frame.shape[0] for p in patterns), first.pattern.longest)
    values = torch.cat([part.values for part in parts])
    lengths = torch.cat([p.lengths() for p in patterns])
    return StoredEntries(values, of_lengths(lengths, sizes, first.pattern.at, values.shape[0]))


def stack(call: Call) -> Any:
    """Parts of the same lengths become a dimension of features."""
    given = call.bound("tensors dim")
    parts, dim = given["tensors"], given.get("dim", 0)
    if not _together(parts):
        return None
    first = parts[0]
    dim = as_dim(dim, len(first.shape) + 1)
    before = len([d for d in feature_dims(first) if d < dim])
    at = tuple([place + (place >= dim) for place in first.pattern.at])
    return StoredEntries(torch.stack([p.values for p in parts], before + 1), first.pattern.moved(at))


def where(call: Call) -> Any:
    """With two jagged sides, or a jagged condition: only then nothing is specified beyond the ends."""
    given = where_arguments(call.function, call.args, call.kwargs)
    if given is None:
        return None
    masked = [o for o in given if is_jagged(o)]
    for other in masked[1:]:
        if other.pattern.at == masked[0].pattern.at and len(other.shape) == len(masked[0].shape):
            check_frames(masked[0].pattern, other.pattern)
    if not is_jagged(given[0]) and len(masked) < 2:
        return None
    return _position_by_position(given, torch.where)


def masked_fill(call: Call) -> Any:
    """With a jagged condition, which writes nothing beyond the ends."""
    given = call.bound("input mask value")
    x, condition, value = given["input"], given["mask"], given.get("value")
    if not is_jagged(condition) or is_masked(value):
        return None
    return _position_by_position([x, condition], lambda rows, chosen: torch.masked_fill(rows, chosen, value))  # type: ignore[arg-type]


def _position_by_position(operands: list[Any], run: Callable[..., Any]) -> Any:
    """Of operands of the same lengths: of two lengths, the longer side counts where it is chosen."""
    masked = [o for o in operands if is_jagged(o)]
    if any(isinstance(o, Entries) for o in operands):
        return None
    if not all(same_lengths(masked[0].pattern, o.pattern) for o in masked[1:]):
        return None
    found = aligned(operands)
    return None if found is None else StoredEntries(run(*found.operands), found.pattern)


def rearranged(call: Call) -> Any:
    """Apply the rule of this name."""
    rule = RULES[call.operation.name]
    x, rest, named = call.first()
    if not is_jagged(x):
        return None
    found = rule(call.function, x, *rest, **named)
    if found is None and rule is _reshaped:  # rows have no strides that could forbid a view
        values, mask = densified(x)
        whole = Entries(values.contiguous(), mask)
        return call._replace(args=(whole, *rest), kwargs=named).on_padded()
    return found


#: Rules that may get the new shape from PyTorch's function.
RULES: dict[str, Callable[..., StoredEntries | None]] = {
    **dict.fromkeys(("transpose", "permute", "t", "T", "mT", "movedim"), _rearranged),
    **dict.fromkeys(("reshape", "view", "reshape_as", "view_as", "flatten", "unflatten"), _reshaped),
    **dict.fromkeys(("expand", "broadcast_to", "expand_as"), _expanded),
    "unsqueeze": lambda _, x, dim: unsqueeze(x, dim),
    "squeeze": _squeeze,
}
