"""Rearrangements of stored entries: places move, values stay.

Exchanging rows and columns exchanges CSR with CSC, and BSR with BSC, and moves nothing. Other results are CSR or CSC
where the operand is such a matrix and the result is one too, and COO everywhere else; reshaping gives COO always.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.patterns import BlockPattern, CompressedPattern, CoordinatePattern, StoredPattern
from maskgrad.patterns.stored import keys_of, places_of
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.stored.entries import Stored, exploded, flat, from_places, shape_of, undivided

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["RULES", "expand", "on_dense", "permute", "reshape", "squeeze", "transpose", "unsqueeze"]

TURNED = {
    torch.sparse_csr: torch.sparse_csc,
    torch.sparse_csc: torch.sparse_csr,
    torch.sparse_bsr: torch.sparse_bsc,
    torch.sparse_bsc: torch.sparse_bsr,
}


def on_dense(x: Stored, move: Callable[[Tensor], Tensor]) -> Stored:
    """Change the dense dimensions of all entries (n, *dense) alike; the pattern stays."""
    return Stored(x.pattern.gathered(move(x.entries)), x.pattern)


def _turned(x: Stored) -> Stored:
    """The last two of the sparse dimensions of a compressed layout exchanged: the same memory, read the other way."""
    pattern, sizes = x.pattern, (*x.sizes[:-2], x.sizes[-1], x.sizes[-2])
    turned: StoredPattern
    if isinstance(pattern, BlockPattern):
        height, width = pattern.blocksize
        turned = BlockPattern(
            TURNED[pattern.layout], pattern.pointers, pattern.positions, (width, height), sizes
        )
        return Stored(x.values.transpose(len(sizes) - 1, len(sizes)), turned)
    assert isinstance(pattern, CompressedPattern)
    return Stored(
        x.values, CompressedPattern(TURNED[pattern.layout], pattern.pointers, pattern.positions, sizes)
    )


def permute(x: Stored, dims: Sequence[int]) -> Stored:
    """Exchange dimensions; sparse ones among themselves, or all of them once dense ones are spelled out."""
    order = [as_dim(d, len(x.shape)) for d in dims]
    if sorted(order) != list(range(len(x.shape))):
        raise RuntimeError(
            f"permute(dims): must name each of {len(x.shape)} dimensions once, found {tuple(dims)}"
        )
    if order == sorted(order):
        return x
    sparse = len(x.sizes)
    outer = order[:sparse]
    if sorted(outer) != list(range(sparse)):
        coordinates, entries, sizes = exploded(x)
        return from_places(coordinates[order], entries, tuple(sizes[d] for d in order), x.pattern)
    if order[sparse:] != list(range(sparse, len(order))):
        x = on_dense(x, lambda entries: entries.permute(0, *[d - sparse + 1 for d in order[sparse:]]))
    if outer == sorted(outer):
        return x
    if x.pattern.layout in TURNED and outer == [*range(sparse - 2), sparse - 1, sparse - 2]:
        return _turned(x)
    coordinates = x.pattern.coordinates()
    return from_places(coordinates[outer], x.entries, tuple(x.sizes[d] for d in outer), x.pattern)


def transpose(x: Stored, dim0: int, dim1: int) -> Stored:
    """Exchange two dimensions."""
    order = list(range(len(x.shape)))
    a, b = as_dim(dim0, len(order)), as_dim(dim1, len(order))
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


def matrix_transpose(x: Stored) -> Stored:
    """``x.mT``."""
    return transpose(x, -2, -1)


def reversed_dims(x: Stored) -> Stored:
    """``x.T``."""
    return permute(x, list(reversed(range(len(x.shape)))))


def t(x: Stored) -> Stored:
    """``x.t()``."""
    if len(x.shape) > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {len(x.shape)}D; use x.mT"
        )
    return reversed_dims(x)


def conjugate_transpose(x: Stored) -> Stored:
    """``x.mH``, ``x.H`` and ``x.adjoint()``."""
    turned = matrix_transpose(x)
    return Stored(turned.values.conj(), turned.pattern)


def movedim(x: Stored, source: Any, destination: Any) -> Stored:
    """Move dimensions to other places; the others keep their order."""
    rank = len(x.shape)
    start = [as_dim(d, rank) for d in ([source] if isinstance(source, int) else source)]
    end = [as_dim(d, rank) for d in ([destination] if isinstance(destination, int) else destination)]
    if len(set(start)) != len(start) or len(set(end)) != len(end) or len(start) != len(end):
        raise RuntimeError(f"movedim: repeated or unequal dimensions, found {source} and {destination}")
    rest = iter([d for d in range(rank) if d not in start])
    placed = dict(zip(end, start, strict=True))
    return permute(x, [placed[d] if d in placed else next(rest) for d in range(rank)])


def reshape(x: Stored, *shape: Any) -> Stored:
    """Other sizes for the same row-major numbers: COO."""
    sizes = list(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else list(shape)
    total = math.prod(x.shape)
    if sizes.count(-1) == 1:
        known = math.prod(s for s in sizes if s != -1)
        sizes[sizes.index(-1)] = total // max(known, 1)
    if math.prod(sizes) != total or min(sizes, default=0) < 0:
        raise RuntimeError(f"shape {tuple(sizes)} is invalid for input of size {total}")
    if not sizes:
        raise UnsupportedLayoutError("making a number of a tensor", x.pattern.layout, tuple(x.shape))
    if tuple(sizes) == tuple(x.shape):
        return x
    coordinates, entries, old = exploded(x)
    # COO, because a line for each of 10^10 rows of size 1 costs more than the entries
    return from_places(places_of(keys_of(coordinates, old), tuple(sizes)), entries, tuple(sizes))


def view(x: Stored, *shape: Any, dtype: torch.dtype | None = None) -> Stored:
    """``view`` to another shape, or to another dtype of the same size."""
    kind = shape[0] if shape and isinstance(shape[0], torch.dtype) else dtype
    if kind is None:
        return reshape(x, *shape)
    if kind.itemsize != x.values.dtype.itemsize:
        raise TypeError(
            f"view(dtype) of a MaskedTensor needs a dtype of the same size, {x.values.element_size()} bytes, "
            f"found {kind}; several entries would share one place"
        )
    return Stored(x.values.view(kind), x.pattern)


def view_as(x: Stored, other: Any) -> Stored:
    """The shape of another tensor."""
    return reshape(x, tuple(shape_of(other)))


def flatten(x: Stored, start_dim: int = 0, end_dim: int = -1) -> Stored:
    """Merge neighbouring dimensions."""
    start, end = as_dim(start_dim, len(x.shape)), as_dim(end_dim, len(x.shape))
    if start > end:
        raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
    return reshape(x, (*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def unflatten(x: Stored, dim: int, sizes: Sequence[int]) -> Stored:
    """Split a dimension."""
    at = as_dim(dim, len(x.shape))
    inner = torch.empty(x.shape[at], device="meta").unflatten(0, list(sizes)).shape
    return reshape(x, (*x.shape[:at], *inner, *x.shape[at + 1 :]))


def unsqueeze(x: Stored, dim: int) -> Stored:
    """A new dimension of size 1: dense if it stands behind a dense one, else sparse."""
    at, sparse = as_dim(dim, len(x.shape) + 1), len(x.sizes)
    if at > sparse:
        return on_dense(x, lambda entries: entries.unsqueeze(at - sparse + 1))
    coordinates = x.pattern.coordinates()
    zero = coordinates.new_zeros((1, coordinates.shape[1]))
    coordinates = torch.cat([coordinates[:at], zero, coordinates[at:]])
    return _in_order(x, coordinates, (*x.sizes[:at], 1, *x.sizes[at:]))


def squeeze(x: Stored, dim: Any = None) -> Stored | Entries:
    """Remove dimensions of size 1; a tensor of which no sparse dimension remains is dense."""
    rank, sparse = len(x.shape), len(x.sizes)
    dims = range(rank) if dim is None else [as_dim(d, rank) for d in ([dim] if isinstance(dim, int) else dim)]
    gone = {d for d in dims if x.shape[d] == 1}
    inner = tuple([d - sparse + 1 for d in gone if d >= sparse])
    entries = x.entries.squeeze(inner) if inner else x.entries
    kept = [d for d in range(sparse) if d not in gone]
    if not kept:
        return undivided(entries)
    if len(kept) == sparse:
        return Stored(x.pattern.gathered(entries), x.pattern)
    smaller = Stored(x.pattern.gathered(entries), x.pattern)
    return _in_order(smaller, x.pattern.coordinates()[kept], tuple(x.sizes[d] for d in kept))


def _in_order(x: Stored, coordinates: Tensor, sizes: tuple[int, ...]) -> Stored:
    """Other coordinates for the same entries, whose order they keep."""
    if isinstance(x.pattern, CoordinatePattern):
        return Stored(x.values, CoordinatePattern(coordinates, sizes))
    return from_places(coordinates, x.entries, sizes, x.pattern)


def expand(x: Stored, *shape: Any) -> Stored:
    """Repeat along dimensions of size 1, and along new ones in front: every repeated entry is stored."""
    sizes = list(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else list(shape)
    added = len(sizes) - len(x.shape)
    if added < 0:
        raise RuntimeError(f"expand: the number of sizes ({len(sizes)}) must be at least {len(x.shape)}")
    for _ in range(added):
        x = unsqueeze(x, 0)
    wanted = [old if new == -1 else new for new, old in zip(sizes, x.shape, strict=True)]
    if any(old not in (1, new) for new, old in zip(wanted, x.shape, strict=True)):
        raise RuntimeError(f"expand: sizes {tuple(sizes)} do not fit the shape {tuple(x.shape)}")
    sparse = len(x.sizes)
    if wanted[sparse:] != list(x.shape[sparse:]):
        x = on_dense(x, lambda entries: entries.expand(-1, *wanted[sparse:]).contiguous())
    grown = [d for d in range(sparse) if x.sizes[d] != wanted[d]]
    if not grown:
        return x
    coordinates, entries, new = x.pattern.coordinates(), x.entries, tuple(wanted[:sparse])
    times = math.prod(new[d] for d in grown)
    numbers = torch.arange(times, device=coordinates.device)
    places = coordinates.repeat_interleave(times, dim=1)
    inner = places_of(numbers, tuple(new[d] for d in grown)).repeat(1, coordinates.shape[1])
    for row, d in enumerate(grown):
        places[d] = inner[row]
    return from_places(places, entries.repeat_interleave(times, dim=0), new, x.pattern)


def expand_as(x: Stored, other: Any) -> Stored:
    """Repeat to the shape of another tensor."""
    return expand(x, tuple(shape_of(other)))


def flip(x: Stored, *dims: Any) -> Stored:
    """Reverse the order along dimensions."""
    given = dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims
    order = [as_dim(d, len(x.shape)) for d in given]
    x = x if all(d < len(x.sizes) for d in order) else flat(x)
    coordinates = x.pattern.coordinates().clone()
    for d in order:
        coordinates[d] = x.sizes[d] - 1 - coordinates[d]
    return from_places(coordinates, x.entries, x.sizes, x.pattern)


def roll(x: Stored, shifts: Any, dims: Any = None) -> Stored:
    """Move entries along dimensions, round and round."""
    if dims is None or dims == ():
        return reshape(roll(reshape(x, -1), shifts, 0), tuple(x.shape))
    steps = [shifts] if isinstance(shifts, int) else list(shifts)
    along = [as_dim(d, len(x.shape)) for d in ([dims] if isinstance(dims, int) else dims)]
    x = x if all(d < len(x.sizes) for d in along) else flat(x)
    coordinates = x.pattern.coordinates().clone()
    for step, d in zip(steps, along, strict=True):
        coordinates[d] = (coordinates[d] + step) % max(x.sizes[d], 1)
    return from_places(coordinates, x.entries, x.sizes, x.pattern)


def diagonal(x: Stored, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Stored:
    """The entries whose two coordinates differ by ``offset``; their dimension comes last."""
    a, b = as_dim(dim1, len(x.shape)), as_dim(dim2, len(x.shape))
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    coordinates, entries, sizes = exploded(x)
    length = max(0, min(sizes[a] + min(offset, 0), sizes[b] - max(offset, 0)))
    on = coordinates[b] - coordinates[a] == offset
    rest = [d for d in range(len(sizes)) if d not in (a, b)]
    along = torch.minimum(coordinates[a], coordinates[b])[on].unsqueeze(0)
    places = torch.cat([coordinates[rest][:, on], along])
    return from_places(places, entries[on], (*(sizes[d] for d in rest), length), x.pattern)


def _with_dims(rule: Callable[..., Stored]) -> Callable[..., Stored]:
    """``x.permute(1, 0)`` and ``torch.permute(x, (1, 0))``."""

    def body(x: Stored, *dims: Any, **named: Any) -> Stored:
        if named:
            dims = tuple(named.values())
        return rule(x, dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)

    return body


def _same(x: Stored, *_: Any, **__: Any) -> Stored:
    return x


RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("permute", "permute_copy"), _with_dims(permute)),
    **dict.fromkeys(("transpose", "transpose_copy"), transpose),
    **dict.fromkeys(("t", "t_copy"), t),
    "T": reversed_dims,
    "mT": matrix_transpose,
    **dict.fromkeys(("adjoint", "mH", "H"), conjugate_transpose),
    "movedim": movedim,
    "reshape": reshape,
    **dict.fromkeys(("view", "view_copy"), view),
    **dict.fromkeys(("view_as", "reshape_as"), view_as),
    **dict.fromkeys(("flatten", "ravel"), flatten),
    "unflatten": unflatten,
    **dict.fromkeys(("unsqueeze", "unsqueeze_copy"), unsqueeze),
    **dict.fromkeys(("squeeze", "squeeze_copy"), squeeze),
    **dict.fromkeys(("expand", "expand_copy", "broadcast_to"), expand),
    "expand_as": expand_as,
    "flip": flip,
    "fliplr": lambda x: flip(x, 1),
    "flipud": lambda x: flip(x, 0),
    "roll": roll,
    **dict.fromkeys(("diagonal", "diagonal_copy", "linalg.diagonal"), diagonal),
    **dict.fromkeys(("contiguous", "alias_copy"), _same),
}
