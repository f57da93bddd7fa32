"""Reading parts of stored tensors: the selected entries, at their new indices."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.mode import TRACED, mode
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.indexing import is_positions
from maskgrad.semantics.signatures import SYNONYMS
from maskgrad.semantics.stored.elementwise import lookup
from maskgrad.semantics.stored.entries import StoredEntries, flat, from_places, undivided
from maskgrad.semantics.stored.views import index_select, reshape, unsqueeze

__all__ = ["PARTS", "RULES", "of_a_line"]


def of_a_line(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    place: int,
    line: Tensor,
    dim: Any = 0,
) -> Any:
    """What a function of one dimension, the argument at ``place``, makes of a line of its positions."""
    options = {k: v for k, v in kwargs.items() if SYNONYMS.get(k, k) not in ("dim", "dims", "input")}
    if place < len(args):
        args = (*args[:place], dim, *args[place + 1 :])
    else:
        options["dims" if "dims" in kwargs else "dim"] = dim
    return function(line, *args[1:], **options)


def _line(x: StoredEntries, at: int) -> Tensor:
    """The positions of a dimension: without memory, where offsets of views may be read."""
    size = x.shape[at]
    return (
        torch.arange(size, device=x.values.device) if mode() in TRACED else torch.empty(size, device="meta")
    )


def _section(x: StoredEntries, at: int, part: Tensor) -> StoredEntries | Entries:
    """A slice of dimension ``at``, or one position without the dimension: ``part`` is what it makes of a line."""
    x = flat(x)
    coordinates = x.pattern.coordinates()
    start: Any = part.storage_offset() if part.is_meta else part.reshape(-1)[0] if part.numel() else 0
    step, length = (part.stride(0), part.shape[0]) if part.ndim else (1, 1)
    place = coordinates[at] - start
    inside = (place >= 0) & (place < length * step) & (place % step == 0)
    new = torch.div(place, step, rounding_mode="floor").unsqueeze(0)[: part.ndim]
    kept = torch.cat([coordinates[:at], new, coordinates[at + 1 :]])[:, inside]
    sizes = (*x.sizes[:at], *part.shape, *x.sizes[at + 1 :])
    return from_places(kept, x.entries[inside], sizes) if sizes else undivided(x.entries[inside])


def _parts(place: int) -> Callable[..., Any]:
    """``narrow``, ``select``, ``split``, …, whose ``dim`` is at ``place``: consecutive positions of one dimension."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["input"]
        dim = args[place] if place < len(args) else kwargs.get("dim", kwargs.get("axis", 0))
        at = as_dim(dim, len(x.shape))
        parts = of_a_line(function, args, kwargs, place, _line(x, at))
        if isinstance(parts, Tensor):
            return _section(x, at, parts)
        return tuple([_section(x, at, part) for part in parts])

    return body


def _index_select(input: StoredEntries, dim: int, index: Tensor) -> StoredEntries:
    """Slices by position, in the order of ``index``, which may contain duplicates."""
    _known(index)
    at = as_dim(dim, len(input.shape))
    index = index.reshape(-1)
    if index.dtype not in (torch.int64, torch.int32):
        raise IndexError(f"index_select(): Expected dtype int32 or int64 for index, found {index.dtype}")
    return index_select(input, at, _inside(index, at, 0, input.shape[at]))


def _inside(index: Tensor, dim: int, least: int, size: int) -> Tensor:
    if bool(((index < least) | (index >= size)).any()):
        raise IndexError(
            f"index out of range: positions of dimension {dim} lie between {least} and {size - 1}"
        )
    return torch.where(index < 0, index + size, index)


def _known(index: Any) -> None:
    if isinstance(index, (StoredEntries, Entries)):
        raise TypeError(
            f"index must be a plain tensor, got a MaskedTensor of dtype {index.values.dtype} with entries that may be "
            "masked. Use index.filled(False), or index.compressed()"
        )


def _part(part: Any, x: StoredEntries) -> Any:
    """Convert integers to int, and lists to tensors."""
    _known(part)
    if isinstance(part, (slice, type(None), type(Ellipsis))):
        return part
    if isinstance(part, Tensor) and part.dtype != torch.bool and not part.ndim:
        return int(part)
    if isinstance(part, (Tensor, list)):
        positions = torch.as_tensor(part, device=x.values.device)
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
    parts = [_part(part, input) for part in (index if isinstance(index, tuple) else (index,))]
    takers = [p for p in parts if p is not None and p is not Ellipsis]
    taken = sum(p.ndim if isinstance(p, Tensor) and p.dtype == torch.bool else 1 for p in takers)
    if taken > len(input.shape):
        raise IndexError(f"too many indices for tensor of dimension {len(input.shape)}")
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), None)
    if at is not None:
        parts[at : at + 1] = [slice(None)] * (len(input.shape) - taken)
    if sum(isinstance(part, Tensor) for part in parts) > 1:
        return _pointwise(input, parts)
    found: Any = input
    dim = 0
    for part in parts:
        if part is None:
            found, dim = unsqueeze(found, dim), dim + 1
        elif isinstance(part, Tensor):
            found, dim = _advanced(found, dim, part), dim + 1
        elif isinstance(part, int) or part != slice(None):
            found, dim = _section(found, dim, _line(found, dim)[part]), dim + isinstance(part, slice)
        else:
            dim += 1
    return found


def _looked_up(x: Any, index: Any) -> StoredEntries:
    """One entry of a plain vector for each stored position."""
    if not (isinstance(x, Tensor) and x.ndim == 1 and is_positions(index)):
        raise TypeError(
            "an index on a sparse layout can only read entries of a plain vector, as in weights[labels]; use "
            "x[index.to_dense()] otherwise"
        )
    return StoredEntries(x[index.values], index.pattern)


def _advanced(x: StoredEntries, dim: int, part: Tensor) -> Any:
    """One tensor: positions, or the Booleans of one or more dimensions."""
    last = dim + part.ndim
    if part.dtype != torch.bool:
        if part.ndim == 1:
            return index_select(x, dim, _inside(part, dim, -x.shape[dim], x.shape[dim]))
        if part.ndim == len(x.shape) and not dim:
            return _pointwise(x, [part])
        raise UnsupportedLayoutError(
            "indexing with a tensor of several dimensions", x.pattern.layout, tuple(x.shape)
        )
    if tuple(part.shape) != tuple(x.shape[dim:last]) or not part.ndim:
        raise IndexError(
            f"the shape of the mask {tuple(part.shape)} does not match that of the tensor {tuple(x.shape)} from "
            f"dimension {dim} on"
        )
    joined = reshape(x, (*x.shape[:dim], part.numel(), *x.shape[last:]))
    return index_select(joined, dim, part.reshape(-1).nonzero().squeeze(1))


def _is_position(part: Any) -> bool:
    return isinstance(part, int) or (isinstance(part, Tensor) and part.dtype != torch.bool)


def _pointwise(x: StoredEntries, parts: list[Any]) -> Entries:
    """``x[rows, columns]``: one entry for each pair; the result has the shape of the index and is not sparse."""
    if any(not _is_position(part) for part in parts) or len(parts) not in (
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
        moved.append(_inside(position, dim, -size, size).long())
    moved = list(torch.broadcast_tensors(*moved))
    shape = moved[0].shape
    entries, present = lookup(x, torch.stack([m.reshape(-1) for m in moved]))
    whole = entries.reshape(*shape, *entries.shape[1:])
    mask = present.reshape(*shape, *(1,) * (entries.ndim - 1)).expand(whole.shape)
    return Entries(whole, mask)


#: Bodies.
PARTS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("narrow", "select", "unbind"), _parts(1)),
    **dict.fromkeys(
        (
            "chunk",
            "unsafe_chunk",
            "split",
            "unsafe_split",
            "split_with_sizes",
            "unsafe_split_with_sizes",
            "tensor_split",
        ),
        _parts(2),
    ),
}
RULES: dict[str, Callable[..., Any]] = {
    "index_select": _index_select,
    "__getitem__": _getitem,
}
