"""Rearrangements of stored entries: indices change, values do not.

Exchanging rows and columns exchanges CSR with CSC, and BSR with BSC, and copies nothing. All other results are COO,
without dense dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns import CompressedPattern
from maskgrad.patterns.stored import ravel_multi_index, unravel_index
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries, as_entries
from maskgrad.semantics.entries import rearranged as on_both
from maskgrad.semantics.shapes import order_after, shape_after
from maskgrad.semantics.stored.entries import StoredEntries, exploded, flat, from_places, undivided

__all__ = ["RULES", "expand", "index_select", "meeting", "reshape", "squeeze", "transpose", "unsqueeze"]


def transpose(x: Any, dim0: int, dim1: int) -> Any:
    """Exchange two dimensions; also for Boolean masks and plain tensors."""
    if not isinstance(x, StoredEntries):
        return on_both(x, lambda part: part.transpose(dim0, dim1))
    return _rearranged(torch.transpose, x, dim0, dim1)


def _rearranged(
    function: Callable[..., Any], input: StoredEntries, *args: Any, **kwargs: Any
) -> StoredEntries:
    """``transpose``, ``movedim``, ``x.T``, …: dimensions in another order."""
    order, sparse = order_after(function, len(input.shape), *args, **kwargs), len(input.sizes)
    if order == sorted(order):
        return input
    turned = [*range(sparse - 2), sparse - 1, sparse - 2, *range(sparse, len(order))]
    if isinstance(input.pattern, CompressedPattern) and order == turned:
        blocks = input.pattern.blocksize is not None
        values = input.values.transpose(sparse - 1, sparse) if blocks else input.values
        return StoredEntries(values, input.pattern.transposed())
    coordinates, entries, sizes = exploded(input)
    return from_places(coordinates[order], entries, tuple(sizes[d] for d in order))


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
        given = input if isinstance(input, StoredEntries) else as_entries(input)
        return reshape(given, shape_after(function, input.shape, *args, **kwargs))
    if kind.itemsize != input.values.dtype.itemsize:
        raise TypeError(
            f"view(dtype) of a MaskedTensor needs a dtype of the same size, {input.values.element_size()} bytes, "
            f"found {kind}; several entries would share one index"
        )
    return StoredEntries(input.values.view(kind), input.pattern)


def reshape(x: Any, shape: Sequence[int]) -> Any:
    """Other sizes for the same row-major numbers; dense without any; also for Boolean masks and plain tensors."""
    if not isinstance(x, StoredEntries):
        return on_both(x, lambda part: part.reshape(tuple(shape)))
    sizes = shape_after(torch.reshape, x.shape, shape)
    if sizes == x.shape:
        return x
    coordinates, entries, old = exploded(x)
    if not sizes:
        return undivided(entries)
    places = unravel_index(ravel_multi_index(coordinates, old), tuple(sizes))
    return from_places(places, entries, tuple(sizes))


def unsqueeze(input: Any, dim: int) -> Any:
    """A new dimension of size 1."""
    shape = list(input.shape if not isinstance(input, Entries) else input.values.shape)
    shape.insert(as_dim(dim, len(shape) + 1), 1)
    return reshape(input, shape)


def squeeze(input: Any, dim: Any = None) -> Any:
    """Remove dimensions of size 1; also for other operands."""
    if not isinstance(input, StoredEntries):
        return on_both(input, lambda part: part.squeeze(dim))
    rank = len(input.shape)
    dims = range(rank) if dim is None else [as_dim(d, rank) for d in ([dim] if isinstance(dim, int) else dim)]
    return reshape(input, [size for d, size in enumerate(input.shape) if size != 1 or d not in dims])


def expand(x: StoredEntries, shape: Sequence[int]) -> StoredEntries:
    """Repeat along dimensions of size 1, and along new ones in front: every repeated entry is stored."""
    x = flat(reshape(x, (*(1,) * (len(shape) - len(x.shape)), *x.shape)))
    for d, (own, size) in enumerate(zip(x.sizes, shape, strict=True)):
        if own != size:
            x = index_select(x, d, torch.zeros(size, dtype=torch.int64, device=x.values.device))
    return x


def _expanded(function: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    shape = shape_after(function, input.shape, *args, **kwargs)
    if isinstance(input, StoredEntries):
        return expand(input, shape)
    return on_both(as_entries(input), lambda part: part.expand(tuple(shape)))


def index_select(x: StoredEntries, at: int, index: Tensor) -> StoredEntries:
    """The positions ``index``, all of them in bounds, of dimension ``at``; in this order, perhaps several times."""
    x = flat(x)
    coordinates = x.pattern.coordinates()
    which, source = meeting(index.to(coordinates.dtype), coordinates[at])
    kept = coordinates[:, source]
    kept[at] = which
    sizes = (*x.sizes[:at], index.shape[0], *x.sizes[at + 1 :])
    return from_places(kept, x.entries[source], sizes)


def meeting(wanted: Tensor, lines: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs of positions in ``wanted`` (m,) and ``lines`` (n,) with equal values, in the order of ``wanted``."""
    order = torch.argsort(lines, stable=True)
    ascending, wanted = lines[order].contiguous(), wanted.contiguous()
    begin = torch.searchsorted(ascending, wanted)
    number = torch.searchsorted(ascending, wanted, right=True) - begin
    first = torch.repeat_interleave(number)
    offset = torch.arange(first.shape[0], device=lines.device) - (number.cumsum(0) - number)[first]
    return first, order[begin[first] + offset]


def _moved(x: StoredEntries, dims: Any, move: Callable[[Tensor, int, int], Tensor]) -> StoredEntries:
    """New coordinates along ``dims``: ``move`` of coordinates, the size, and the number of the dimension."""
    along = [as_dim(d, len(x.shape)) for d in dims]
    coordinates, entries, sizes = exploded(x)
    coordinates = coordinates.clone()
    for number, d in enumerate(along if sizes else ()):
        coordinates[d] = move(coordinates[d], sizes[d], number)
    return from_places(coordinates, entries, sizes)


def _flip(input: StoredEntries, *sizes: Any, dims: Any = None) -> StoredEntries:
    given = sizes if dims is None else dims
    given = given[0] if len(given) == 1 and not isinstance(given[0], int) else given
    shape_after(torch.flip, input.shape, given)  # no dimension twice
    return _moved(input, given, lambda places, size, _: size - 1 - places)


def _roll(input: StoredEntries, shifts: Any, dims: Any = None) -> StoredEntries:
    shape_after(torch.roll, input.shape, shifts, dims or ())  # as many of both
    if dims is None or dims == ():
        rolled: StoredEntries = reshape(_roll(reshape(input, (-1,)), shifts, 0), input.shape)
        return rolled
    steps, along = ([v] if isinstance(v, int) else list(v) for v in (shifts, dims))
    return _moved(input, along, lambda places, size, number: (places + steps[number]) % max(size, 1))


def _diagonal(input: StoredEntries, offset: int = 0, dim1: int = 0, dim2: int = 1) -> StoredEntries:
    """The entries whose two coordinates differ by ``offset``; their dimension comes last."""
    sizes = shape_after(torch.diagonal, input.shape, offset, dim1, dim2)
    coordinates, entries, old = exploded(input)
    a, b = as_dim(dim1, len(old)), as_dim(dim2, len(old))
    on = coordinates[b] - coordinates[a] == offset
    rest = [d for d in range(len(old)) if d not in (a, b)]
    along = torch.minimum(coordinates[a], coordinates[b]).unsqueeze(0)
    return from_places(torch.cat([coordinates[rest], along])[:, on], entries[on], tuple(sizes))


RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("permute", "transpose", "t", "T", "mT", "movedim"), _rearranged),
    **dict.fromkeys(("reshape", "view_as", "reshape_as", "flatten", "ravel", "unflatten", "view"), _reshaped),
    **dict.fromkeys(("expand", "broadcast_to", "expand_as"), _expanded),
    "unsqueeze": unsqueeze,
    "squeeze": squeeze,
    "flip": _flip,
    "roll": _roll,
    **dict.fromkeys(("diagonal", "linalg.diagonal"), _diagonal),
    "contiguous": lambda input, *_, **__: input,
}
