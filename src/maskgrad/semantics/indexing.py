"""Indexing: results of reads keep their pattern; written entries become specified."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedOperationError
from maskgrad.kernels.smallest import any_of
from maskgrad.mode import mode
from maskgrad.semantics.entries import (
    Entries,
    Operand,
    filled,
    intersection,
    mask_of,
    rearranged,
    specified,
    values_of,
)
from maskgrad.semantics.facts import of_rule, record
from maskgrad.semantics.signatures import paired
from maskgrad.semantics.stored.entries import StoredEntries


class _Unspecified:
    """The value of ``mg.unspecified``: assigning it to entries removes them."""

    def __repr__(self) -> str:
        return "maskgrad.unspecified"

    def __reduce__(self) -> str:
        return "UNSPECIFIED"


UNSPECIFIED = _Unspecified()
#: Types of what is no value to write, and the operations that could be given one.
NO_VALUES = (type(None), _Unspecified)
WRITING = frozenset({"where", "masked_fill", "fill", "put", "scatter", "masked_scatter"}) | {
    f"index_{name}" for name in ("fill", "put", "copy")
}
#: The names of their arguments with values.
VALUES = {"input", "other", "self", "source", "src", "value", "values"}
#: The dtypes of positions, and those that select where they are not zero.
POSITIONS = (torch.int64, torch.int32, torch.int16, torch.int8)
SELECTING = (torch.bool, torch.uint8)


def plain_index(index: Any) -> Any:
    """Check an index that must be fully specified: for writes, and for Boolean selection."""
    if isinstance(index, Entries):
        if mode() == "eager" and bool(index.mask.all()):
            return index.values
        remedy = (
            "index.filled(False)"
            if index.values.dtype == torch.bool
            else "index.compressed(), and value[index.mask]"
        )
        raise TypeError(
            f"index must be a plain tensor, got a MaskedTensor of dtype {index.values.dtype} with entries that may be "
            f"masked. Use {remedy}"
        )
    if isinstance(index, Tensor) and (index.is_floating_point() or index.is_complex()):
        raise IndexError(
            f"index tensors must have an integer or Boolean dtype, got {index.dtype}; use index.long()"
        )
    if isinstance(index, (tuple, list)):
        return type(index)(plain_index(part) for part in index)
    return index


def selecting(x: Operand, condition: Any) -> Any:
    """Convert a masked condition to a plain one if it is specified wherever ``x`` is: ``x[x > 0]``.

    Unspecified entries are not selected. Where ``x`` is specified and the condition is not, the result would be
    unknown: the condition is returned unchanged, to be refused.
    """
    if not (
        isinstance(condition, Entries) and condition.values.dtype == torch.bool and isinstance(x, Entries)
    ):
        return condition
    values, known = condition
    ndim = known.ndim
    if known.shape != x.mask.shape[:ndim] or mode() != "eager":
        return condition
    needed = x.mask if ndim == x.mask.ndim else any_of(x.mask, tuple(range(ndim, x.mask.ndim)))
    return condition if bool((needed & ~known).any()) else values & known


def is_positions(index: Any) -> bool:
    """Return whether an index is a masked tensor of positions: some may be masked, and read nothing."""
    return isinstance(index, (Entries, StoredEntries)) and index.values.dtype in POSITIONS


def getitem(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x[index]``, basic or advanced."""
    x, index = args[0], selecting(*args)
    parts = index if type(index) is tuple else (index,)
    if not any(is_positions(part) for part in parts):
        index = plain_index(index)
        return Entries(x.values[index], x.mask[index]) if isinstance(x, Entries) else x[index]
    index = tuple([filled(part) if is_positions(part) else plain_index(part) for part in parts])
    values = values_of(x)[index]
    known = _known_positions(values_of(x).shape, parts, index, values.device).expand(values.shape)
    return Entries(values, x.mask[index] & known if isinstance(x, Entries) else known)


def _known_positions(
    shape: torch.Size, parts: tuple[Any, ...], index: tuple[Any, ...], device: torch.device
) -> Tensor:
    """Which positions in ``index`` are specified, of size 1 in dimensions that are read completely."""
    taken = [_dims_taken(part) for part in index]
    passed, dim = len(shape) - sum(taken), 0
    sizes, at, read = [1] * len(shape), [], []
    for part, plain, dims in zip(parts, index, taken, strict=True):
        if is_positions(part):
            size = shape[dim]
            at.append((dim, size))
            sizes[dim] = size + 1
            plain = torch.where(part.mask, torch.where(plain < 0, plain + size, plain), size)  # noqa: PLW2901
        elif not (isinstance(plain, slice) and plain == slice(None)):
            sizes[dim : dim + dims] = shape[dim : dim + dims]
        read.append(plain)
        dim += passed if plain is Ellipsis else dims
    known = torch.ones((), dtype=torch.bool, device=device)
    for dim, size in at:
        line = torch.arange(size + 1, device=device) < size
        known = known & line.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return known.expand(sizes)[tuple(read)]


def _dims_taken(part: Any) -> int:
    """Number of dimensions of the tensor that one part of an index consumes."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    if isinstance(part, list):
        part = torch.as_tensor(part)
    return part.ndim if getattr(part, "dtype", None) in SELECTING else 1


def refuse_to_write(value: Any) -> None:
    """Raise the error for None, or for ``mg.unspecified`` except in an assignment."""
    raise TypeError(
        f"value must be a tensor or a number, found {value!r}; to remove entries, write x[index] = mg.unspecified, or "
        "mg.masked(x, mask) with a mask that is False there"
    )


def assigned(x: Operand, index: Any, value: Any) -> tuple[Any, Tensor | bool, Any]:
    """Return what ``x[index] = value`` writes: a mask, the specified entries, and the values (None: none)."""
    index = plain_index(selecting(x, index))
    if value is UNSPECIFIED:
        return index, False, None
    if value is None or type(value).__name__ == "MaskedConstant":  # numpy.ma.masked
        refuse_to_write(value)
    if isinstance(value, Entries):
        # PyTorch passes a gradient to both of two equal positions
        return index, value.mask, filled(value)
    return index, True, value


def where(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.where(condition, a, b)``: specified where the condition and the chosen side are."""
    names = ("input", "condition", "other") if function is Tensor.where else ("condition", "input", "other")
    synonyms = {"self": "input"}
    arguments = paired(names, args) | {synonyms.get(k, k): v for k, v in kwargs.items()}
    if len(arguments) == 1:
        raise TypeError(
            "torch.where(condition) is undefined on a MaskedTensor with masked entries. "
            "Use condition.filled(False).nonzero(as_tuple=True)"
        )
    if len(arguments) < 3:
        raise TypeError(
            "where needs a condition and two sides; got no 'other'. To remove the entries where the condition fails, "
            "assign mg.unspecified to them: x[~condition] = mg.unspecified"
        )
    condition: Any = arguments["condition"]
    sides: list[Any] = [arguments["input"], arguments["other"]]
    chosen: Tensor = values_of(condition)
    if chosen.dtype != torch.bool:
        raise TypeError(f"condition must be a Boolean tensor, got {chosen.dtype}; use condition != 0")
    values = torch.where(chosen, *map(values_of, sides))
    here, there = (_mask_of(side, chosen.device) for side in sides)
    mask = torch.where(chosen, here, there)
    if isinstance(condition, Entries):
        mask = mask & condition.mask
    return specified(values, mask)


def _mask_of(operand: Any, device: torch.device) -> Tensor:
    """The operand's mask, or a single True for a fully specified one."""
    return operand.mask if isinstance(operand, Entries) else torch.ones((), dtype=torch.bool, device=device)


def masked_fill(input: Operand, mask: Operand, value: Any) -> Any:
    """Write ``value`` where ``mask`` is True: those entries become specified, others are unchanged."""
    known, chosen = intersection((mask,)), values_of(mask)
    values = torch.masked_fill(values_of(input), chosen, values_of(value))
    written = torch.where(chosen, _mask_of(value, values.device), _mask_of(input, values.device))
    return specified(values, written if known is None else written & known)


def index_select(input: Operand, dim: int, index: Operand) -> Entries:
    """Rows, columns, … by position; a masked position gives a masked one."""
    positions = filled(index)
    values, present = (part.index_select(dim, positions) for part in (values_of(input), mask_of(input)))
    if not isinstance(index, Entries):
        return Entries(values, present)
    one_each = [-1 if d == dim % values.ndim else 1 for d in range(values.ndim)]
    known = index.mask.reshape(one_each).expand(values.shape)
    return Entries(values, present & known if isinstance(input, Entries) else known)


def _read(x: Operand, index: Operand, read: Callable[[Tensor, Tensor], Tensor]) -> Entries:
    """Read at positions that may be masked; their results are masked."""
    positions = filled(index)
    values = read(values_of(x), positions)
    if not isinstance(x, Entries):
        return Entries(values, mask_of(index).expand(values.shape))
    mask = read(x.mask, positions)
    return Entries(values, mask & index.mask if isinstance(index, Entries) else mask)


def gather(input: Operand, dim: int, index: Operand, *, sparse_grad: bool = False) -> Entries:
    """``gather`` along a dimension, one position for each entry of the result."""
    return _read(input, index, lambda x, at: torch.gather(x, dim, at, sparse_grad=sparse_grad))


def take(input: Operand, index: Operand) -> Entries:
    """``take`` from the flattened tensor."""
    return _read(input, index, torch.take)


def take_along_dim(input: Operand, indices: Operand, dim: int | None = None) -> Entries:
    """``take_along_dim``: gather with broadcasting, or take from the flattened tensor."""
    index = indices
    if isinstance(index, Entries) and dim is not None:
        # broadcast the mask of the positions like the positions
        shape = values_of(input).shape
        sizes = list(torch.broadcast_shapes(*(_without(s, dim) for s in (shape, index.mask.shape))))
        sizes.insert(dim % len(shape), index.mask.shape[dim])
        index = rearranged(index, lambda part: part.expand(sizes))
    return _read(input, index, lambda x, positions: torch.take_along_dim(x, positions, dim))


def _without(shape: torch.Size, dim: int) -> list[int]:
    sizes = list(shape)
    del sizes[dim]
    return sizes


def masked_select(input: Entries, mask: Operand) -> Entries:
    """Entries where a Boolean tensor is True, in row-major order, with their masks."""
    mask = selecting(input, mask)
    if isinstance(mask, Entries):
        raise UnsupportedOperationError(
            "torch.masked_select",
            "mask must not have masked entries; use mask.filled(False)",
        )
    # of one shape, because torch.compile assumes at most as many results as the first operand has entries
    values, known, chosen = torch.broadcast_tensors(*input, mask)
    return Entries(torch.masked_select(values, chosen), torch.masked_select(known, chosen))


def nonzero(function: Callable[..., Any], input: Entries, *args: Any, **kwargs: Any) -> Any:
    """Positions of the specified entries that differ from zero: plain tensors, as nothing in them can be masked."""
    return function((input.values != 0) & input.mask, *args, **kwargs)


READ = "that of the entries read"
WHERE_KNOWN = f"{READ}, where the position is specified"
MOVES = "moves back to the entries read"
WHERE = "specified where the condition is and the chosen side is", "to the chosen side"
WRITTEN = "specified where written, else as before", "to the entries kept"
OPERATIONS = (
    record(
        "__getitem__",
        "indexing",
        getitem,
        WHERE_KNOWN,
        MOVES,
        functions=(Tensor.__getitem__, operator.getitem),
        padded="mask",
    ),
    of_rule(where, "indexing", *WHERE, padded="mask"),
    of_rule(masked_fill, "indexing", *WRITTEN, padded="mask"),
    *(
        of_rule(rule, "indexing", WHERE_KNOWN, MOVES, padded="mask")
        for rule in (index_select, gather, take, take_along_dim)
    ),
    of_rule(masked_select, "indexing", READ, MOVES, padded="mask"),
    *(
        record(name, "indexing", nonzero, "plain: positions of specified entries")
        for name in ("nonzero", "nonzero_static", "argwhere")
    ),
)
