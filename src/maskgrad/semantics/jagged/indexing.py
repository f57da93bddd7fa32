"""Reading sequences, positions and features of a jagged batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.patterns.eager import can_read_values
from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.indexing import is_positions
from maskgrad.semantics.jagged.features import ALONG, framed
from maskgrad.semantics.jagged.rows import Call, is_jagged, of_lengths, rows_at
from maskgrad.semantics.jagged.views import unsqueeze
from maskgrad.semantics.sparse.entries import SparseEntries

if TYPE_CHECKING:
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = [
    "DIVIDED",
    "at_position",
    "divided",
    "getitem",
    "of_sequences",
    "picked",
    "positions_between",
    "take",
]

ALL = slice(None)


def getitem(call: Call) -> Any:
    """``x[index]``: one part of the index after the other, the last first, as long as these are independent."""
    x, index = call.args
    looked_up = index[0] if type(index) is tuple and len(index) == 1 else index
    if isinstance(x, Tensor) and is_jagged(looked_up) and is_positions(looked_up):
        return SparseEntries(x[looked_up.values], looked_up.pattern)
    parts = _written_out(index, len(x.shape)) if is_jagged(x) else None
    if parts is None:
        return None
    if not can_read_values(x.values, *x.pattern.tensors()):
        return _features_only(x, parts)
    result: Any = x
    dim = len(x.shape)
    fancy = [p for p in parts if isinstance(p, (Tensor, list))]
    if len(fancy) > 1 or (fancy and any(type(p) is int for p in parts)):  # these are joined by PyTorch
        return None
    for part in reversed(parts):  # dimensions in front keep their places
        if part is not None:
            dim -= 1
        if is_jagged(result):
            result = _one(result, dim, part)
            if result is None:
                return None
        else:
            at = (*[ALL] * dim, part)
            result = Entries(result.values[at], result.mask[at])
    return result


def take(call: Call) -> Any:
    """``torch.take`` at the specified positions, from a plain tensor."""
    given = call.bound("input index")
    x, index = given["input"], given["index"]
    if not (isinstance(x, Tensor) and is_jagged(index)):
        return None
    return SparseEntries(x.take(index.values), index.pattern)


def _written_out(index: Any, rank: int) -> list[Any] | None:
    """One part for each dimension, and None for each new one; None if that cannot be said."""
    parts = list(index) if isinstance(index, tuple) else [index]
    for part in parts:
        known = part is None or part is Ellipsis or type(part) is int or isinstance(part, slice)
        if isinstance(part, slice):
            known = all(v is None or isinstance(v, int) for v in (part.start, part.stop, part.step))
        if isinstance(part, Tensor):
            known = part.ndim == 1
            if part.ndim == 0 and not part.dtype.is_floating_point and part.dtype != torch.bool:
                return None
        if isinstance(part, list):
            known = bool(part) and all(type(p) is int for p in part)
        if not known:
            return None
    used = len([p for p in parts if p is not None and p is not Ellipsis])
    if used > rank:
        raise IndexError(f"too many indices for tensor of dimension {rank}")
    if not any(p is Ellipsis for p in parts):
        parts.append(Ellipsis)
    at = next(i for i, p in enumerate(parts) if p is Ellipsis)
    if any(p is Ellipsis for p in parts[at + 1 :]):
        return None
    return [*parts[:at], *[ALL] * (rank - used), *parts[at + 1 :]]


def _features_only(x: Jagged, parts: list[Any]) -> SparseEntries | None:
    """Where numbers may not be looked at: slices and numbers of features, everything of all else."""
    if any(p is not None and not isinstance(p, (int, slice)) for p in parts):
        return None
    dim, result = len(x.shape), x
    for part in reversed(parts):
        if part is not None:
            dim -= 1
            if dim in result.pattern.at:
                if part != ALL:
                    return None
                continue
        found = _one(result, dim, part)
        assert found is not None
        result = found
    return result


def _one(x: Jagged, dim: int, part: Any) -> Any:
    """One part of an index; None if the result is no prefix of each sequence."""
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
    if len(pattern.at) != 2:
        return None
    size = pattern.frame.shape[0]
    if type(part) is int:
        if not -size <= part < size:
            raise IndexError(f"index {part} is out of bounds for dimension {dim} with size {size}")
        return sequence(x, part % size)
    return of_sequences(x, torch.arange(size, device=pattern.offsets.device)[part])


#: What cuts a dimension into parts that follow each other.
DIVIDED = frozenset((
    "narrow", "chunk", "split", "split_with_sizes", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes",
    "tensor_split",
))  # fmt: skip


def divided(call: Call) -> Any:
    """Parts of the sequences, or of the positions: PyTorch says on a line of numbers where they are."""
    signature, default, _ = ALONG[call.operation.name]
    given = call.bound(signature)
    x, dim = given["input"], given.get("dim", default)
    if not is_jagged(x) or type(dim) is not int or not can_read_values(x.values, *x.pattern.tensors()):
        return None
    dim = as_dim(dim, len(x.shape))
    if dim not in x.pattern.at or x.pattern.is_flat or len(x.pattern.at) != 2:
        return None
    place, args = signature.split().index("dim"), call.args
    options = {k: v for k, v in call.kwargs.items() if k not in ("dim", "input", "self")}
    if place < len(args):
        args = (*args[:place], 0, *args[place + 1 :])
    else:
        options["dim"] = 0
    parts = call.function(torch.arange(x.shape[dim]), *args[1:], **options)
    if isinstance(parts, Tensor):
        return _one(x, dim, _between(parts))
    return type(parts)([_one(x, dim, _between(part)) for part in parts])


def _between(line: Tensor) -> slice:
    start = int(line[0]) if line.numel() else 0
    return slice(start, start + line.numel())


def sequence(x: Jagged, number: int) -> Entries:
    """One sequence, ``x[b]`` as on a mask; nothing is made of the others."""
    pattern = x.pattern
    start, stop = pattern.offsets[number : number + 2].tolist()
    behind = (0, 0) * (x.values.ndim - 1) + (0, pattern.longest - (stop - start))
    values = torch.nn.functional.pad(x.values[start:stop], behind)
    known = torch.arange(pattern.longest, device=values.device) < stop - start
    mask = known.reshape(-1, *(1,) * (values.ndim - 1)).expand(values.shape)
    place = pattern.at[1] - (pattern.at[1] > pattern.at[0])
    return Entries(values.movedim(0, place), mask.movedim(0, place))


def at_position(x: Jagged, position: int) -> Entries:
    """The entries at one position, where a sequence reaches it: ``x[:, t]`` as on a mask."""
    pattern = x.pattern
    longest, dim = pattern.longest, pattern.at[-1]
    if not -longest <= position < longest:
        raise IndexError(f"index {position} is out of bounds for dimension {dim} with size {longest}")
    position %= longest
    known = pattern.lengths() > position
    return picked(x, torch.where(known, pattern.offsets[:-1] + position, 0), known)


def picked(x: Jagged, rows: Tensor, known: Tensor) -> Entries:
    """One row of each sequence, where ``known``; the ragged dimension is gone."""
    pattern = x.pattern
    if x.values.shape[0]:
        values = x.values.index_select(0, rows)
    else:  # there is no row to be read
        values = x.values.sum(0, keepdim=True).expand(rows.shape[0], *x.values.shape[1:]).to(x.values.dtype)
    batch = pattern.frame.shape[:-1]
    values = values.reshape(*batch, *values.shape[1:])
    mask = known.reshape(*batch, *(1,) * (values.ndim - len(batch))).expand(values.shape)
    at = [place - (place > pattern.at[-1]) for place in pattern.at[:-1]]
    order = tuple(range(len(batch)))
    return Entries(values.movedim(order, tuple(at)), mask.movedim(order, tuple(at)))


def positions_between(x: Jagged, start: int, stop: int) -> SparseEntries:
    """``x[:, start:stop]``: sequences that end earlier are shorter, or empty."""
    pattern = x.pattern
    size = max(stop - start, 0)

    def made() -> tuple[JaggedPattern, Tensor]:
        lengths = (pattern.lengths() - start).clamp(0, size)
        shorter = of_lengths(lengths, (*pattern.sizes[:-1], size), pattern.at)
        return shorter, rows_at(pattern.offsets, shorter) + start

    shorter, rows = pattern.remembered(("between", start, stop), made)
    return SparseEntries(x.values.index_select(0, rows), shorter)


def of_sequences(x: Jagged, which: Tensor) -> SparseEntries:
    """Some of the sequences, in any order, perhaps several times; one batch dimension."""
    pattern = x.pattern
    sizes = (which.shape[0], pattern.longest)
    chosen = of_lengths(pattern.lengths().index_select(0, which), sizes, pattern.at)
    rows = rows_at(pattern.offsets[:-1].index_select(0, which), chosen)
    return SparseEntries(x.values.index_select(0, rows), chosen)
