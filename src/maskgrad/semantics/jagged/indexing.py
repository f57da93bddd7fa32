"""Reading sequences, positions and features of a jagged batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.mode import can_read
from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.indexing import is_positions
from maskgrad.semantics.jagged.features import ALONG, dims_of, framed
from maskgrad.semantics.jagged.rows import (
    Call,
    aligned,
    in_frame,
    is_jagged,
    of_lengths,
    of_sequences,
    out_of_frame,
    rows_at,
)
from maskgrad.semantics.jagged.views import unsqueeze
from maskgrad.semantics.stored.entries import StoredEntries, shape_of
from maskgrad.semantics.stored.indexing import of_a_line

if TYPE_CHECKING:
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["DIVIDED", "GATHERED", "at_position", "gathered", "getitem", "picked", "positions_between", "read"]

ALL = slice(None)


def getitem(call: Call) -> Any:
    """``x[index]``: one part of the index at a time, from the last, if they are independent."""
    x, index = call.args
    looked_up = index[0] if type(index) is tuple and len(index) == 1 else index
    if isinstance(x, Tensor) and is_jagged(looked_up) and is_positions(looked_up):
        return StoredEntries(x[looked_up.values], looked_up.pattern)
    parts = _written_out(index, len(x.shape)) if is_jagged(x) else None
    if parts is None:
        return None
    known = can_read(x.values, *x.pattern.tensors())
    result: Any = x
    dim = len(x.shape)
    fancy = [p for p in parts if isinstance(p, (Tensor, list))]
    if len(fancy) > 1 or (fancy and any(type(p) is int for p in parts)):  # PyTorch combines these
        return None
    for part in reversed(parts):  # dimensions in front keep their positions
        if part is not None:
            dim -= 1
        if is_jagged(result):
            if not known and dim in result.pattern.at and part is not None and part != ALL:
                return None
            result = _one(result, dim, part)
            if result is None:
                return None
        else:
            at = (*[ALL] * dim, part)
            result = Entries(result.values[at], result.mask[at])
    return result


def _written_out(index: Any, rank: int) -> list[Any] | None:
    """One part for each dimension, and None for each new one; None if that is unknown."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not all(map(_is_plain, parts)):
        return None
    used = len([p for p in parts if p is not None and p is not Ellipsis])
    if used > rank:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    first, *others = [*[i for i, p in enumerate(parts) if p is Ellipsis], len(parts)]
    if len(others) > 1:
        return None
    return [*parts[:first], *[ALL] * (rank - used), *parts[first + 1 :]]


def _is_plain(part: Any) -> bool:
    """Return whether a part reads one dimension, or none, and says which positions."""
    if isinstance(part, slice):
        return all(v is None or isinstance(v, int) for v in (part.start, part.stop, part.step))
    if isinstance(part, list):
        return bool(part) and all(type(p) is int for p in part)
    if isinstance(part, Tensor):
        return part.ndim == 1
    return part is None or part is Ellipsis or type(part) is int


def _one(x: Jagged, dim: int, part: Any) -> Any:
    """One part of an index; None if the result is not a prefix of each sequence."""
    if part is None:
        return unsqueeze(x, dim)
    if isinstance(part, slice) and part == ALL:
        return x
    pattern = x.pattern
    if dim not in pattern.at:
        at = tuple([p - (p > dim) for p in pattern.at]) if type(part) is int else pattern.at
        return framed(x, lambda values: values[(*[ALL] * dim, part)], at)
    if pattern.is_flat:
        return None
    if dim == pattern.at[-1]:
        if type(part) is int:
            return at_position(x, part)
        if isinstance(part, slice) and part.step in (None, 1):
            return positions_between(x, *part.indices(pattern.longest)[:2])
        return None
    if len(pattern.at) != 2 or type(part) is int:
        return None
    return of_sequences(x, torch.arange(pattern.frame.shape[0], device=pattern.offsets.device)[part])


#: Functions that read consecutive parts, or single positions.
DIVIDED = frozenset((
    "narrow", "chunk", "split", "split_with_sizes", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes",
    "tensor_split", "select", "unbind",
))  # fmt: skip


def read(call: Call) -> Any:
    """Sequences or positions: the function applied to a range of integers says which, in which order."""
    asked, name = dims_of(call), call.operation.name
    if asked is None or len(asked[1]) != 1:
        return None
    x, (along,) = asked[0]["input"], asked[1]
    pattern = x.pattern
    if pattern.is_flat or len(pattern.at) != 2 or not can_read(x.values, *pattern.tensors()):
        return None
    if along not in pattern.at[: 2 if name in DIVIDED else 1]:
        return None
    line = torch.arange(x.shape[along], device=pattern.offsets.device)
    parts = of_a_line(call.function, call.args, call.kwargs, ALONG[name].signature.split().index("dim"), line)

    def one(part: Tensor) -> Any:
        if not part.ndim:
            return _one(x, along, int(part))
        return of_sequences(x, part) if along == pattern.at[0] else _one(x, along, _between(part))

    if isinstance(parts, Tensor):
        return one(parts)
    found = [one(part) for part in parts]
    return None if any(part is None for part in found) else type(parts)(found)


def _between(line: Tensor) -> slice:
    start = int(line[0]) if line.numel() else 0
    return slice(start, start + line.numel())


def at_position(x: Jagged, position: int) -> Entries:
    """The entries at one position, if a sequence reaches it: ``x[:, t]`` as on a mask."""
    pattern = x.pattern
    longest, dim = pattern.longest, pattern.at[-1]
    if not -longest <= position < longest:
        raise IndexError(f"index {position} is out of bounds for dimension {dim} with size {longest}")
    position %= longest
    known = pattern.lengths() > position
    return picked(x, torch.where(known, pattern.offsets[:-1] + position, 0), known)


def picked(x: Jagged, rows: Tensor, known: Tensor) -> Entries:
    """One row of each sequence, where ``known``; the ragged dimension is removed."""
    pattern = x.pattern
    if x.values.shape[0]:
        values = x.values.index_select(0, rows)
    else:  # there is no row to read
        values = x.values.sum(0, keepdim=True).expand(rows.shape[0], *x.values.shape[1:]).to(x.values.dtype)
    batch = pattern.frame.shape[:-1]
    values = values.reshape(*batch, *values.shape[1:])
    mask = known.reshape(*batch, *(1,) * (values.ndim - len(batch))).expand(values.shape)
    at = [place - (place > pattern.at[-1]) for place in pattern.at[:-1]]
    order = tuple(range(len(batch)))
    return Entries(values.movedim(order, tuple(at)), mask.movedim(order, tuple(at)))


def positions_between(x: Jagged, start: int, stop: int) -> StoredEntries:
    """``x[:, start:stop]``: sequences that end earlier are shorter, or empty."""
    pattern = x.pattern
    size = max(stop - start, 0)

    def made() -> tuple[JaggedPattern, Tensor]:
        lengths = (pattern.lengths() - start).clamp(0, size)
        shorter = of_lengths(lengths, (*pattern.sizes[:-1], size), pattern.at)
        return shorter, rows_at(pattern.offsets, shorter) + start

    shorter, rows = pattern.remembered(("between", start, stop), made)
    return StoredEntries(x.values.index_select(0, rows), shorter)


#: Functions that read one position for each entry of an index.
GATHERED = {"gather": "input dim index sparse_grad", "take_along_dim": "input indices dim"}


def gathered(call: Call) -> Any:
    """``gather`` and ``take_along_dim`` along features, row by row."""
    given = call.bound(GATHERED[call.operation.name])
    x, index, dim = given["input"], given.get("index", given.get("indices")), given.get("dim")
    rank, broadcasts = len(shape_of(x)), "indices" in given
    masked = isinstance(index, Entries) or isinstance(x, Entries)
    if type(dim) is not int or len(shape_of(index)) != rank or masked:
        return None
    pattern, dim = next(o for o in (x, index) if is_jagged(o)).pattern, as_dim(dim, rank)
    for d, (a, b) in enumerate(zip(shape_of(x), shape_of(index), strict=True)):
        if d in pattern.at and a != b and not (broadcasts and 1 in (a, b)):
            return None
    found = None if dim in pattern.at else aligned([x, index])
    if found is None:
        return None
    rows, places = (in_frame(part, pattern.at) for part in found.operands)
    arguments = (rows, places, dim) if broadcasts else (rows, dim, places)
    return StoredEntries(out_of_frame(call.function(*arguments), pattern.at), found.pattern)
