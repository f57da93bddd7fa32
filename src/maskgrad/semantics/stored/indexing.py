"""Reading parts of stored tensors: the selected entries, at their new indices."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.patterns.stored import ravel_multi_index
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.indexing import is_positions
from maskgrad.semantics.stored.elementwise import lookup
from maskgrad.semantics.stored.entries import StoredEntries, flat, from_places
from maskgrad.semantics.stored.views import on_dense, squeeze, unsqueeze

__all__ = ["RULES", "index_select", "meeting", "pieces", "section"]


def _resized(x: StoredEntries, at: int, size: int, coordinates: Tensor, entries: Tensor) -> StoredEntries:
    """Entries of a tensor whose dimension ``at`` has another size."""
    return from_places(coordinates, entries, (*x.sizes[:at], size, *x.sizes[at + 1 :]), x.pattern)


def section(x: StoredEntries, at: int, start: int, length: int, step: int = 1) -> StoredEntries:
    """Every ``step``-th position of a range of one dimension, all of them in bounds."""
    if length == x.shape[at] and step == 1:
        return x
    if at >= len(x.sizes):
        index = torch.arange(start, start + length * step, step, device=x.values.device)
        return on_dense(x, lambda entries: entries.index_select(at - len(x.sizes) + 1, index))
    coordinates = x.pattern.coordinates()
    place = coordinates[at] - start
    inside = (place >= 0) & (place < length * step)
    if step != 1:
        inside &= place % step == 0
    kept = coordinates[:, inside]
    kept[at] = torch.div(place[inside], step, rounding_mode="floor")
    return _resized(x, at, length, kept, x.entries[inside])


def _narrow(input: StoredEntries, dim: int, start: Any, length: int) -> StoredEntries:
    at = as_dim(dim, len(input.shape))
    size, begin = input.shape[at], int(start)
    if not -size <= begin <= size:
        raise IndexError(
            f"start out of range (expected to be in range of [{-size}, {size}], but got {begin})"
        )
    begin = begin + size if begin < 0 else begin
    if length < 0 or begin + length > size:
        raise RuntimeError(f"start ({begin}) + length ({length}) exceeds dimension size ({size}).")
    return section(input, at, begin, length)


def _select(input: StoredEntries, dim: int, index: Any) -> Any:
    """One slice; the dimension is removed."""
    at, place = as_dim(dim, len(input.shape)), int(index)
    size = input.shape[at]
    if not -size <= place < size:
        raise IndexError(f"index {place} is out of bounds for dimension {at} with size {size}")
    return squeeze(section(input, at, place % size, 1), at)


def index_select(input: StoredEntries, dim: int, index: Tensor) -> StoredEntries:
    """Slices by position, in the order of ``index``, which may contain duplicates."""
    _known(index)
    at = as_dim(dim, len(input.shape))
    index = index.reshape(-1)
    if index.dtype not in (torch.int64, torch.int32):
        raise IndexError(f"index_select(): Expected dtype int32 or int64 for index, found {index.dtype}")
    if bool(((index < 0) | (index >= input.shape[at])).any()):
        raise IndexError(
            f"index out of range in self: positions must lie between 0 and {input.shape[at] - 1}"
        )
    if at >= len(input.sizes):
        return on_dense(input, lambda entries: entries.index_select(at - len(input.sizes) + 1, index))
    coordinates = input.pattern.coordinates()
    which, source = meeting(index.to(coordinates.dtype), coordinates[at])
    kept = coordinates[:, source]
    kept[at] = which
    return _resized(input, at, index.shape[0], kept, input.entries[source])


def meeting(wanted: Tensor, lines: Tensor) -> tuple[Tensor, Tensor]:
    """All pairs of positions in ``wanted`` (m,) and ``lines`` (n,) with equal values, in the order of ``wanted``."""
    order = torch.argsort(lines, stable=True)
    ascending, wanted = lines[order].contiguous(), wanted.contiguous()
    begin = torch.searchsorted(ascending, wanted)
    number = torch.searchsorted(ascending, wanted, right=True) - begin
    first = torch.repeat_interleave(number)
    offset = torch.arange(first.shape[0], device=lines.device) - (number.cumsum(0) - number)[first]
    return first, order[begin[first] + offset]


def pieces(x: StoredEntries, at: int, lengths: list[int]) -> tuple[StoredEntries, ...]:
    """Consecutive parts of one dimension, for any number of them with one sort."""
    if at >= len(x.sizes):
        parts = x.entries.split(lengths, at - len(x.sizes) + 1)
        return tuple([StoredEntries(x.pattern.gathered(part), x.pattern) for part in parts])
    coordinates = x.pattern.coordinates()
    order = torch.argsort(coordinates[at], stable=True)
    sorted_places, entries = coordinates[:, order], x.entries[order]
    ends = torch.tensor(lengths, device=order.device).cumsum(0)
    counts = torch.searchsorted(sorted_places[at].contiguous(), ends).diff(prepend=ends.new_zeros(1)).tolist()
    result, start = [], 0
    rows, parts = sorted_places.split(counts, 1), entries.split(counts)
    for length, places, part in zip(lengths, rows, parts, strict=True):
        moved = places.clone()
        moved[at] -= start
        start += length
        result.append(_resized(x, at, length, moved, part))
    return tuple(result)


def _divided(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a rule from the function of torch that returns the sizes of the parts of a dimension."""

    def body(input: StoredEntries, *args: Any, dim: int = 0, **options: Any) -> tuple[StoredEntries, ...]:
        if len(args) > 1:
            dim, args = args[1], args[:1]
        at = as_dim(dim, len(input.shape))
        model = torch.empty(input.shape[at], device="meta")
        return pieces(input, at, [part.shape[0] for part in function(model, *args, **options)])

    return body


def _unbind(input: StoredEntries, dim: int = 0) -> tuple[StoredEntries | Entries, ...]:
    at = as_dim(dim, len(input.shape))
    return tuple([squeeze(part, at) for part in pieces(input, at, [1] * input.shape[at])])


def _known(index: Any) -> None:
    if isinstance(index, (StoredEntries, Entries)):
        raise TypeError(
            f"index must be a plain tensor, got a MaskedTensor of dtype {index.values.dtype} with entries that may be "
            "masked. Use index.filled(False), or index.compressed()"
        )


def _part(part: Any) -> Any:
    """Convert integers to int, and lists to tensors."""
    _known(part)
    if isinstance(part, (slice, type(None), type(Ellipsis))):
        return part
    if isinstance(part, Tensor) and part.dtype != torch.bool and not part.ndim:
        return int(part)
    if isinstance(part, (Tensor, list)):
        positions = torch.as_tensor(part)
        if positions.is_floating_point() or positions.is_complex():
            raise IndexError(
                f"index tensors must have an integer or Boolean dtype, found {positions.dtype}; use index.long()"
            )
        return positions
    if isinstance(part, bool):
        raise IndexError("a single Boolean cannot index a sparse layout; use a tensor, or x.to_dense()")
    return operator.index(part)


def _getitem(input: Any, index: Any) -> Any:
    """Integers, slices, Ellipsis, None, tensors of positions or Booleans, in torch's order of dimensions."""
    if not isinstance(input, StoredEntries):
        return _looked_up(input, index[0] if type(index) is tuple and len(index) == 1 else index)
    _known(index)
    parts = [_part(part) for part in (index if isinstance(index, tuple) else (index,))]
    takers = [p for p in parts if p is not None and p is not Ellipsis]
    taken = sum(p.ndim if isinstance(p, Tensor) and p.dtype == torch.bool else 1 for p in takers)
    if taken > len(input.shape):
        raise IndexError(f"too many indices for tensor of dimension {len(input.shape)}")
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), None)
    if at is not None:
        parts[at : at + 1] = [slice(None)] * (len(input.shape) - taken)
    if sum(isinstance(part, Tensor) for part in parts) > 1:
        return _pointwise(input, parts)
    dim = 0
    for i, part in enumerate(parts):
        if not isinstance(input, StoredEntries):  # no sparse dimensions remain
            rest = (*[slice(None)] * dim, *parts[i:])
            return Entries(input.values[rest], input.mask[rest])
        if part is None:
            input, dim = unsqueeze(input, dim), dim + 1
        elif isinstance(part, slice):
            input, dim = _sliced(input, dim, part), dim + 1
        elif isinstance(part, Tensor):
            input, dim = _advanced(input, dim, part), dim + 1
        else:
            input = _select(input, dim, part)
    return input


def _looked_up(x: Any, index: Any) -> StoredEntries:
    """One entry of a plain vector for each stored position."""
    if not (isinstance(x, Tensor) and x.ndim == 1 and is_positions(index)):
        raise TypeError(
            "an index on a sparse layout can only read entries of a plain vector, as in weights[labels]; use "
            "x[index.to_dense()] otherwise"
        )
    return StoredEntries(x[index.values], index.pattern)


def _take(input: Any, index: Any) -> StoredEntries:
    """``torch.take`` at the stored positions, from a plain tensor."""
    if not (isinstance(input, Tensor) and isinstance(index, StoredEntries)):
        raise TypeError("take on a sparse layout needs a plain input; use x.to_dense().take(index)")
    return StoredEntries(input.take(index.values), index.pattern)


def _sliced(x: StoredEntries, dim: int, part: slice) -> StoredEntries:
    start, stop, step = part.indices(x.shape[dim])
    if step < 1:
        raise ValueError("step must be greater than zero")
    return section(x, dim, start, max(0, -(-(stop - start) // step)), step)


def _advanced(x: StoredEntries, dim: int, part: Tensor) -> Any:
    """One tensor: positions, or the Booleans of one or more dimensions."""
    part = part.to(x.values.device)
    if part.dtype == torch.bool:
        return _where_true(x, dim, part)
    if part.ndim != 1:
        if part.ndim != len(x.shape) or dim:
            raise UnsupportedLayoutError(
                "indexing with a tensor of several dimensions", x.pattern.layout, tuple(x.shape)
            )
        return _pointwise(x, [part])
    return index_select(x, dim, _positive(part, dim, x.shape[dim]))


def _positive(position: Tensor, dim: int, size: int) -> Tensor:
    if bool(((position < -size) | (position >= size)).any()):
        raise IndexError(f"index is out of bounds for dimension {dim} with size {size}")
    return torch.where(position < 0, position + size, position)


def _where_true(x: StoredEntries, dim: int, chosen: Tensor) -> StoredEntries:
    """The indices at which a Boolean tensor is True, as one dimension."""
    last = dim + chosen.ndim
    if tuple(chosen.shape) != tuple(x.shape[dim:last]) or not chosen.ndim:
        raise IndexError(
            f"the shape of the mask {tuple(chosen.shape)} does not match that of the tensor {tuple(x.shape)} from "
            f"dimension {dim} on"
        )
    x = x if last <= len(x.sizes) else flat(x)
    coordinates = x.pattern.coordinates()
    number = ravel_multi_index(coordinates[dim:last], tuple(chosen.shape))
    inside = chosen.reshape(-1)[number]
    rank = (chosen.reshape(-1).cumsum(0) - 1)[number[inside]]
    kept = coordinates[:, inside]
    places = torch.cat([kept[:dim], rank.unsqueeze(0), kept[last:]])
    sizes = (*x.sizes[:dim], int(chosen.sum()), *x.sizes[last:])
    return from_places(places, x.entries[inside], sizes, x.pattern)


def _pointwise(x: StoredEntries, parts: list[Any]) -> Entries:
    """``x[rows, columns]``: one entry for each pair; the result has the shape of the index and is not sparse."""
    if any(not isinstance(part, (Tensor, int)) for part in parts) or len(parts) not in (
        len(x.sizes),
        len(x.shape),
    ):
        raise UnsupportedLayoutError(
            "indexing with several tensors and something else", x.pattern.layout, tuple(x.shape)
        )
    x = x if len(parts) == len(x.sizes) else flat(x)
    moved = []
    for dim, (part, size) in enumerate(zip(parts, x.sizes, strict=True)):
        position = torch.as_tensor(part, device=x.values.device)
        if position.dtype == torch.bool:
            if position.shape != (size,):
                raise IndexError(f"the mask of dimension {dim} must have shape ({size},)")
            position = position.nonzero().squeeze(1)
        moved.append(_positive(position, dim, size).long())
    moved = list(torch.broadcast_tensors(*moved))
    shape = moved[0].shape
    entries, present = lookup(x, torch.stack([m.reshape(-1) for m in moved]))
    whole = entries.reshape(*shape, *entries.shape[1:])
    mask = present.reshape(*shape, *(1,) * (entries.ndim - 1)).expand(whole.shape)
    return Entries(whole, mask)


_DIVIDED = """
    chunk unsafe_chunk split unsafe_split split_with_sizes unsafe_split_with_sizes split_with_sizes_copy tensor_split
"""

RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("narrow", "narrow_copy"), _narrow),
    **dict.fromkeys(("select", "select_copy"), _select),
    "index_select": index_select,
    "__getitem__": _getitem,
    "take": _take,
    **dict.fromkeys(("unbind", "unbind_copy"), _unbind),
    **{name: _divided(getattr(torch, name)) for name in _DIVIDED.split() if hasattr(torch, name)},
}
