"""Rearrangements of stored entries: places move, values stay; row-major results are COO unless CSR or CSC fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.patterns.stored import keys_of, places_of
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.stored.entries import Stored, exploded, from_places

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RULES"]


def permute(x: Stored, dims: Sequence[int]) -> Stored:
    """Exchange dimensions; sparse ones among themselves, or all of them once dense ones are spelled out."""
    order = [as_dim(d, len(x.shape)) for d in dims]
    sparse = len(x.pattern.sizes)
    if order[sparse:] == list(range(sparse, len(x.shape))):
        coordinates, entries, sizes = x.pattern.coordinates(), x.entries, x.pattern.sizes
        order = order[:sparse]
    else:
        coordinates, entries, sizes = exploded(x)
    return from_places(coordinates[order], entries, tuple(sizes[d] for d in order), x.pattern)


def transpose(x: Stored, dim0: int, dim1: int) -> Stored:
    """Exchange two dimensions."""
    order = list(range(len(x.shape)))
    a, b = as_dim(dim0, len(order)), as_dim(dim1, len(order))
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


def reversed_dims(x: Stored) -> Stored:
    """``x.T`` and ``x.t()``."""
    return permute(x, list(reversed(range(len(x.shape)))))


def matrix_transpose(x: Stored) -> Stored:
    """``x.mT``."""
    return transpose(x, -2, -1)


def reshape(x: Stored, *shape: Any) -> Stored:
    """Other sizes for the same row-major numbers."""
    sizes = list(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else list(shape)
    total = math.prod(x.shape)
    if -1 in sizes:
        known = math.prod(s for s in sizes if s != -1)
        sizes[sizes.index(-1)] = total // max(known, 1)
    if math.prod(sizes) != total:
        raise RuntimeError(f"shape {tuple(sizes)} is invalid for input of size {total}")
    coordinates, entries, old = exploded(x)
    return from_places(places_of(keys_of(coordinates, old), tuple(sizes)), entries, tuple(sizes), x.pattern)


def flatten(x: Stored, start_dim: int = 0, end_dim: int = -1) -> Stored:
    """Merge neighbouring dimensions."""
    start, end = as_dim(start_dim, len(x.shape)), as_dim(end_dim, len(x.shape))
    return reshape(x, (*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def unsqueeze(x: Stored, dim: int) -> Stored:
    """A new dimension of size 1."""
    at = as_dim(dim, len(x.shape) + 1)
    return reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


def squeeze(x: Stored, dim: Any = None) -> Stored:
    """Remove dimensions of size 1."""
    rank = len(x.shape)
    dims = range(rank) if dim is None else [as_dim(d, rank) for d in ([dim] if isinstance(dim, int) else dim)]
    gone = {d for d in dims if x.shape[d] == 1}
    return reshape(x, tuple(s for d, s in enumerate(x.shape) if d not in gone))


def narrow(x: Stored, dim: int, start: int, length: int, step: int = 1) -> Stored:
    """A range of one dimension."""
    at = as_dim(dim, len(x.shape))
    if at >= len(x.pattern.sizes):
        inner = at - len(x.pattern.sizes) + 1
        index = torch.arange(start, start + length * step, step, device=x.values.device)
        return from_places(
            x.pattern.coordinates(), x.entries.index_select(inner, index), x.pattern.sizes, x.pattern
        )
    coordinates = x.pattern.coordinates()
    place = coordinates[at] - start
    inside = (place >= 0) & (place < length * step) & (place % step == 0)
    kept = coordinates[:, inside].clone()
    kept[at] = torch.div(place[inside], step, rounding_mode="floor")
    sizes = (*x.pattern.sizes[:at], length, *x.pattern.sizes[at + 1 :])
    return from_places(kept, x.entries[inside], sizes, x.pattern)


def select(x: Stored, dim: int, index: int) -> Any:
    """One slice; the dimension disappears."""
    at = as_dim(dim, len(x.shape))
    size = x.shape[at]
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension {at} with size {size}")
    if len(x.shape) == 1:
        raise UnsupportedLayoutError("selecting one number", x.pattern.layout, tuple(x.shape))
    return squeeze(narrow(x, at, index % size, 1), at)


def index_select(x: Stored, dim: int, index: Tensor) -> Stored:
    """Slices by position, in the order asked for; a position may be asked for several times."""
    at = as_dim(dim, len(x.shape))
    if at >= len(x.pattern.sizes):
        inner = at - len(x.pattern.sizes) + 1
        return from_places(
            x.pattern.coordinates(), x.entries.index_select(inner, index), x.pattern.sizes, x.pattern
        )
    coordinates = x.pattern.coordinates()
    order = torch.argsort(coordinates[at], stable=True)
    line = coordinates[at][order].contiguous()
    begin = torch.searchsorted(line, index)
    number = torch.searchsorted(line, index, right=True) - begin
    which = torch.repeat_interleave(number)  # the position in the result of each entry that is read
    offset = torch.arange(which.shape[0], device=index.device) - (number.cumsum(0) - number)[which]
    source = order[begin[which] + offset]
    kept = coordinates[:, source].clone()
    kept[at] = which
    sizes = (*x.pattern.sizes[:at], index.shape[0], *x.pattern.sizes[at + 1 :])
    return from_places(kept, x.entries[source], sizes, x.pattern)


def getitem(x: Stored, index: Any) -> Any:
    """Integers, slices, Ellipsis, None, and one tensor of positions or Booleans per dimension, one after the other."""
    parts = list(index) if isinstance(index, tuple) else [index]
    given = sum(1 for part in parts if part is not None and part is not Ellipsis)
    if Ellipsis in [p for p in parts if not isinstance(p, Tensor)]:
        at = next(i for i, p in enumerate(parts) if p is Ellipsis)
        parts[at : at + 1] = [slice(None)] * (len(x.shape) - given)
    if sum(isinstance(part, (Tensor, list)) for part in parts) > 1:
        raise UnsupportedLayoutError("indexing with several tensors", x.pattern.layout, tuple(x.shape))
    dim = 0
    for part in parts:
        if part is None:
            x, dim = unsqueeze(x, dim), dim + 1
        elif isinstance(part, int):
            x = select(x, dim, part)
        elif isinstance(part, slice):
            start, stop, step = part.indices(x.shape[dim])
            if step < 1:
                raise ValueError("step must be greater than zero")
            length = max(0, -(-(stop - start) // step))
            x, dim = (x if length == x.shape[dim] else narrow(x, dim, start, length, step)), dim + 1
        else:
            positions = torch.as_tensor(part, device=x.values.device)
            if positions.ndim != 1:
                raise UnsupportedLayoutError("indexing with a tensor of several dimensions", x.pattern.layout)
            positions = positions.nonzero().squeeze(1) if positions.dtype == torch.bool else positions
            x, dim = (
                index_select(x, dim, torch.where(positions < 0, positions + x.shape[dim], positions)),
                dim + 1,
            )
    return x


def cat(tensors: Sequence[Any], dim: int = 0) -> Stored:
    """Put stored tensors one behind the other."""
    if not all(isinstance(t, Stored) for t in tensors):
        raise UnsupportedLayoutError(
            "joining sparse and dense tensors",
            tensors[0].pattern.layout if isinstance(tensors[0], Stored) else torch.strided,
        )
    parts = [exploded(t) for t in tensors]
    at = as_dim(dim, len(parts[0][2]))
    shapes = [[s for d, s in enumerate(sizes) if d != at] for _, _, sizes in parts]
    if any(shape != shapes[0] for shape in shapes):
        raise RuntimeError(
            f"cat: sizes must match except in dimension {at}, found {[tuple(p[2]) for p in parts]}"
        )
    moved, offset = [], 0
    for coordinates, _, sizes in parts:
        shifted = coordinates.clone()
        shifted[at] += offset
        offset += sizes[at]
        moved.append(shifted)
    whole = list(parts[0][2])
    whole[at] = offset
    entries = torch.cat([entries for _, entries, _ in parts])
    return from_places(torch.cat(moved, 1), entries, tuple(whole), tensors[0].pattern)


def stack(tensors: Sequence[Any], dim: int = 0) -> Stored:
    """Join along a new dimension."""
    return cat([unsqueeze(t, dim) if isinstance(t, Stored) else t for t in tensors], dim)


def _same(x: Stored, *_: Any, **__: Any) -> Stored:
    return x


RULES: dict[str, Callable[..., Any]] = {
    "permute": lambda x, *dims, **k: permute(
        x, k.get("dims", dims[0] if dims and not isinstance(dims[0], int) else dims)
    ),
    "transpose": transpose,
    "t": reversed_dims,
    "T": reversed_dims,
    "mT": matrix_transpose,
    "adjoint": matrix_transpose,
    "reshape": reshape,
    "view": reshape,
    "flatten": flatten,
    "ravel": flatten,
    "unsqueeze": unsqueeze,
    "squeeze": squeeze,
    "narrow": narrow,
    "select": select,
    "index_select": index_select,
    "__getitem__": getitem,
    "cat": cat,
    "stack": stack,
    "contiguous": _same,
}
