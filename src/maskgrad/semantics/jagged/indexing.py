"""Reading sequences, positions and features of a jagged batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.mode import can_read, mode
from maskgrad.patterns.jagged import JaggedPattern, same_lengths
from maskgrad.semantics.dimensions import as_dim, as_dims
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.indexing import is_positions
from maskgrad.semantics.jagged.features import ALONG, framed, several_dims
from maskgrad.semantics.jagged.rows import (
    Call,
    aligned,
    in_frame,
    is_jagged,
    of_lengths,
    of_sequences,
    out_of_frame,
    padded,
    rows_at,
)
from maskgrad.semantics.jagged.views import unsqueeze
from maskgrad.semantics.stored.entries import StoredEntries, is_masked, shape_of

if TYPE_CHECKING:
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = [
    "DIVIDED",
    "GATHERED",
    "OF_SEQUENCES",
    "at_position",
    "gathered",
    "getitem",
    "masked_select",
    "picked",
    "positions_between",
    "read",
    "selected",
    "take",
]

ALL = slice(None)


def getitem(call: Call) -> Any:
    """``x[index]``: one part of the index at a time, from the last, if they are independent."""
    x, index = call.args
    looked_up = index[0] if type(index) is tuple and len(index) == 1 else index
    if isinstance(x, Tensor) and is_jagged(looked_up) and is_positions(looked_up):
        return StoredEntries(x[looked_up.values], looked_up.pattern)
    if is_jagged(x) and is_jagged(index):
        return selected(x, index)
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


def selected(x: Jagged, condition: Jagged) -> Entries | None:
    """``x[x > 0]``: entries, or rows, of the same sequences; all selected entries are specified."""
    same = x.pattern.at == condition.pattern.at and same_lengths(x.pattern, condition.pattern)
    shape = condition.values.shape
    if condition.values.dtype != torch.bool or not same or shape != x.values.shape[: len(shape)]:
        return None
    if x.pattern.at != tuple(range(len(x.pattern.at))):  # rows are stored in another order than positions
        return None
    found = x.values[condition.values]
    return Entries(found, torch.ones((), dtype=torch.bool, device=found.device).expand(found.shape))


def masked_select(call: Call) -> Any:
    """``masked_select`` by a condition on the same rows."""
    given = call.bound("input mask")
    x, condition = given["input"], given["mask"]
    if is_jagged(x) and is_jagged(condition) and x.shape == condition.shape:
        return selected(x, condition)
    return None


def take(call: Call) -> Any:
    """``torch.take`` at the specified positions, from a plain tensor."""
    given = call.bound("input index")
    x, index = given["input"], given["index"]
    if not (isinstance(x, Tensor) and is_jagged(index)):
        return None
    return StoredEntries(x.take(index.values), index.pattern)


def _written_out(index: Any, rank: int) -> list[Any] | None:
    """One part for each dimension, and None for each new one; None if that is unknown."""
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
    if len(pattern.at) != 2:
        return None
    size = pattern.frame.shape[0]
    if type(part) is int:
        if not -size <= part < size:
            raise IndexError(f"index {part} is out of bounds for dimension {dim} with size {size}")
        return sequence(x, part % size)
    return of_sequences(x, torch.arange(size, device=pattern.offsets.device)[part])


#: Functions that read consecutive parts, or single positions, …
DIVIDED = frozenset((
    "narrow", "chunk", "split", "split_with_sizes", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes",
    "tensor_split", "select", "unbind",
))  # fmt: skip
#: … and those that reorder and repeat: for sequences, in any order.
OF_SEQUENCES = frozenset(("index_select", "flip", "roll", "repeat_interleave"))


def read(call: Call) -> Any:
    """Sequences or positions: the function applied to a range of integers says which, in which order."""
    signature, default, _ = ALONG[call.operation.name]
    given = call.bound(signature)
    x, dim = given["input"], given.get("dim", given.get("dims", default))
    masked = any(is_masked(v) for k, v in given.items() if k != "input")
    if masked or not is_jagged(x) or dim is None or isinstance(dim, Tensor) or several_dims(call):
        return None
    dims, pattern = as_dims(dim, len(x.shape)), x.pattern
    number = _number_of_rows(call.operation.name, given, x)
    known = can_read(x.values, *pattern.tensors()) or (number is not None and mode() == "graph")
    if pattern.is_flat or len(pattern.at) != 2 or not known:
        return None
    if len(dims) != 1 or dims[0] not in pattern.at[: 2 if call.operation.name in DIVIDED else 1]:
        return None
    (along,), first = dims, 0 if isinstance(dim, int) else (0,)
    place, args = signature.split().index("dim"), call.args
    options = {k: v for k, v in call.kwargs.items() if k not in ("dim", "dims", "input", "self")}
    if place < len(args):
        args = (*args[:place], first, *args[place + 1 :])
    else:
        options["dims" if "dims" in call.kwargs else "dim"] = first
    parts = call.function(torch.arange(x.shape[along], device=pattern.offsets.device), *args[1:], **options)

    def one(line: Tensor) -> Any:
        if not line.ndim:
            return _one(x, along, int(line))
        return of_sequences(x, line, number) if along == pattern.at[0] else _one(x, along, _between(line))

    return one(parts) if isinstance(parts, Tensor) else type(parts)([one(part) for part in parts])


def _number_of_rows(name: str, given: dict[str, Any], x: Jagged) -> int | None:
    """How many rows there are after sequences have changed places, or were repeated; None if it must be read."""
    rows, repeats = x.values.shape[0], given.get("repeats")
    if name in ("flip", "roll"):
        return rows
    return rows * repeats if name == "repeat_interleave" and isinstance(repeats, int) else None


def _between(line: Tensor) -> slice:
    start = int(line[0]) if line.numel() else 0
    return slice(start, start + line.numel())


def sequence(x: Jagged, number: int) -> Entries:
    """One sequence, ``x[b]`` as on a mask; without copying the others."""
    whole = padded(of_sequences(x, torch.tensor([number], device=x.values.device)))
    return Entries(*(part.select(x.pattern.at[0], 0) for part in whole))


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
