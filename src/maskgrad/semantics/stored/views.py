"""Rearrangements of stored entries: indices change, values do not.

Exchanging rows and columns exchanges CSR with CSC, and BSR with BSC, and copies nothing. Other results are CSR or CSC
if operand and result are such matrices, and COO otherwise; reshaping always gives COO.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns import CompressedPattern, CoordinatePattern
from maskgrad.patterns.stored import ravel_multi_index, unravel_index
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import rearranged as on_both
from maskgrad.semantics.shapes import order_after, shape_after
from maskgrad.semantics.stored.entries import StoredEntries, exploded, flat, from_places, undivided

__all__ = [
    "RULES",
    "expand",
    "on_dense",
    "permute",
    "reshape",
    "squeeze",
    "transpose",
    "unsqueeze",
]


def on_dense(x: StoredEntries, move: Callable[[Tensor], Tensor]) -> StoredEntries:
    """Change the dense dimensions of all entries (n, *dense) alike; the pattern is unchanged."""
    return StoredEntries(x.pattern.gathered(move(x.entries)), x.pattern)


def permute(x: StoredEntries, order: Sequence[int]) -> StoredEntries:
    """Exchange dimensions; sparse ones among themselves, or all of them after converting dense ones."""
    order = list(order)
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
    if isinstance(x.pattern, CompressedPattern) and outer == [*range(sparse - 2), sparse - 1, sparse - 2]:
        values = x.values if x.pattern.blocksize is None else x.values.transpose(sparse - 1, sparse)
        return StoredEntries(values, x.pattern.transposed())
    coordinates = x.pattern.coordinates()
    return from_places(coordinates[outer], x.entries, tuple(x.sizes[d] for d in outer), x.pattern)


def transpose(x: Any, dim0: int, dim1: int) -> Any:
    """Exchange two dimensions; also for Boolean masks and plain tensors."""
    if not isinstance(x, StoredEntries):
        return on_both(x, lambda part: part.transpose(dim0, dim1))
    order = list(range(len(x.shape)))
    a, b = as_dim(dim0, len(order)), as_dim(dim1, len(order))
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


def _rearranged(
    function: Callable[..., Any], input: StoredEntries, *args: Any, **kwargs: Any
) -> StoredEntries:
    """``transpose``, ``movedim``, ``x.T``, …: dimensions in another order."""
    return permute(input, order_after(function, len(input.shape), *args, **kwargs))


def _conjugate_transpose(function: Callable[..., Any], input: StoredEntries) -> StoredEntries:
    turned = _rearranged(function, input)
    return StoredEntries(turned.values.conj(), turned.pattern)


def _reshaped(
    function: Callable[..., Any],
    input: StoredEntries,
    *args: Any,
    dtype: torch.dtype | None = None,
    **kwargs: Any,
) -> Any:
    """``flatten``, ``view_as``, …: other sizes for the same row-major numbers; ``view`` to a dtype of the same size."""
    kind = args[0] if args and isinstance(args[0], torch.dtype) else dtype
    if kind is None:
        return reshape(input, shape_after(function, input.shape, *args, **kwargs))
    if kind.itemsize != input.values.dtype.itemsize:
        raise TypeError(
            f"view(dtype) of a MaskedTensor needs a dtype of the same size, {input.values.element_size()} bytes, "
            f"found {kind}; several entries would share one index"
        )
    return StoredEntries(input.values.view(kind), input.pattern)


def _expanded(function: Callable[..., Any], input: StoredEntries, *args: Any, **kwargs: Any) -> StoredEntries:
    return expand(input, shape_after(function, input.shape, *args, **kwargs))


def reshape(x: Any, shape: Sequence[int]) -> Any:
    """Other sizes for the same row-major numbers: COO; also for Boolean masks and plain tensors."""
    if not isinstance(x, StoredEntries):
        return on_both(x, lambda part: part.reshape(tuple(shape)))
    sizes = shape_after(torch.reshape, x.shape, shape)
    if sizes == x.shape:
        return x
    coordinates, entries, old = exploded(x)
    # COO, because row pointers for 10^10 rows of size 1 cost more than the entries
    return from_places(
        unravel_index(ravel_multi_index(coordinates, old), tuple(sizes)), entries, tuple(sizes)
    )


def unsqueeze(input: Any, dim: int) -> Any:
    """A new dimension of size 1: dense if it comes after a dense one, else sparse; also for other operands."""
    if not isinstance(input, StoredEntries):
        return on_both(input, lambda part: part.unsqueeze(dim))
    at, sparse = as_dim(dim, len(input.shape) + 1), len(input.sizes)
    if at > sparse:
        return on_dense(input, lambda entries: entries.unsqueeze(at - sparse + 1))
    coordinates = input.pattern.coordinates()
    zero = coordinates.new_zeros((1, coordinates.shape[1]))
    coordinates = torch.cat([coordinates[:at], zero, coordinates[at:]])
    return _in_order(input, coordinates, (*input.sizes[:at], 1, *input.sizes[at:]))


def squeeze(input: Any, dim: Any = None) -> Any:
    """Remove dimensions of size 1; dense without sparse dimensions; also for other operands."""
    if not isinstance(input, StoredEntries):
        return on_both(input, lambda part: part.squeeze(dim))
    rank, sparse = len(input.shape), len(input.sizes)
    dims = range(rank) if dim is None else [as_dim(d, rank) for d in ([dim] if isinstance(dim, int) else dim)]
    gone = {d for d in dims if input.shape[d] == 1}
    inner = tuple([d - sparse + 1 for d in gone if d >= sparse])
    entries = input.entries.squeeze(inner) if inner else input.entries
    kept = [d for d in range(sparse) if d not in gone]
    if not kept:
        return undivided(entries)
    smaller = StoredEntries(input.pattern.gathered(entries), input.pattern)
    if len(kept) == sparse:
        return smaller
    return _in_order(smaller, input.pattern.coordinates()[kept], tuple(input.sizes[d] for d in kept))


def _in_order(x: StoredEntries, coordinates: Tensor, sizes: tuple[int, ...]) -> StoredEntries:
    """New coordinates for the same entries, in the same order."""
    if isinstance(x.pattern, CoordinatePattern):
        return StoredEntries(x.values, CoordinatePattern(coordinates, sizes))
    return from_places(coordinates, x.entries, sizes, x.pattern)


def expand(x: StoredEntries, shape: Sequence[int]) -> StoredEntries:
    """Repeat along dimensions of size 1, and along new ones in front: every repeated entry is stored."""
    wanted = list(shape)
    for _ in range(len(wanted) - len(x.shape)):
        x = unsqueeze(x, 0)
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
    inner = unravel_index(numbers, tuple(new[d] for d in grown)).repeat(1, coordinates.shape[1])
    for row, d in enumerate(grown):
        places[d] = inner[row]
    return from_places(places, entries.repeat_interleave(times, dim=0), new, x.pattern)


def _moved(x: StoredEntries, dims: Any, move: Callable[[Tensor, int, int], Tensor]) -> StoredEntries:
    """New coordinates along ``dims``: ``move`` of coordinates, the size, and the dimension."""
    along = [as_dim(d, len(x.shape)) for d in dims]
    if not x.shape:  # nothing moves, but the result has memory of its own
        return StoredEntries(x.values.clone(), x.pattern)
    x = x if all(d < len(x.sizes) for d in along) else flat(x)
    coordinates = x.pattern.coordinates().clone()
    for number, d in enumerate(along):
        coordinates[d] = move(coordinates[d], x.sizes[d], number)
    return from_places(coordinates, x.entries, x.sizes, x.pattern)


def _flip(input: StoredEntries, *sizes: Any, dims: Any = None) -> StoredEntries:
    given = sizes if dims is None else dims
    given = given[0] if len(given) == 1 and not isinstance(given[0], int) else given
    return _moved(input, given, lambda places, size, _: size - 1 - places)


def _roll(input: StoredEntries, shifts: Any, dims: Any = None) -> StoredEntries:
    if dims is None or dims == ():
        rolled: StoredEntries = reshape(_roll(reshape(input, (-1,)), shifts, 0), input.shape)
        return rolled
    steps = [shifts] if isinstance(shifts, int) else list(shifts)
    along = [dims] if isinstance(dims, int) else dims
    return _moved(input, along, lambda places, size, number: (places + steps[number]) % max(size, 1))


def diagonal(input: StoredEntries, offset: int = 0, dim1: int = 0, dim2: int = 1) -> StoredEntries:
    """The entries whose two coordinates differ by ``offset``; their dimension comes last."""
    a, b = as_dim(dim1, len(input.shape)), as_dim(dim2, len(input.shape))
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    coordinates, entries, sizes = exploded(input)
    length = max(0, min(sizes[a] + min(offset, 0), sizes[b] - max(offset, 0)))
    on = coordinates[b] - coordinates[a] == offset
    rest = [d for d in range(len(sizes)) if d not in (a, b)]
    along = torch.minimum(coordinates[a], coordinates[b])[on].unsqueeze(0)
    places = torch.cat([coordinates[rest][:, on], along])
    return from_places(places, entries[on], (*(sizes[d] for d in rest), length), input.pattern)


RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(
        ("permute", "permute_copy", "transpose", "transpose_copy", "t", "t_copy", "T", "mT", "movedim"),
        _rearranged,
    ),
    **dict.fromkeys(("adjoint", "mH", "H"), _conjugate_transpose),
    **dict.fromkeys(
        ("reshape", "view_as", "reshape_as", "flatten", "ravel", "unflatten", "view", "view_copy"), _reshaped
    ),
    **dict.fromkeys(("expand", "expand_copy", "broadcast_to", "expand_as"), _expanded),
    **dict.fromkeys(("unsqueeze", "unsqueeze_copy"), unsqueeze),
    **dict.fromkeys(("squeeze", "squeeze_copy"), squeeze),
    "flip": _flip,
    "fliplr": lambda input: _flip(input, 1),
    "flipud": lambda input: _flip(input, 0),
    "roll": _roll,
    **dict.fromkeys(("diagonal", "diagonal_copy", "linalg.diagonal"), diagonal),
    **dict.fromkeys(("contiguous", "alias_copy"), lambda input, *_, **__: input),
}
