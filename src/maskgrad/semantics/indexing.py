"""Indexing: what is read carries its pattern along; what is written becomes specified."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedOperationError
from maskgrad.kernels.selection import is_transformed
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


class _Unspecified:
    """The value of ``mg.unspecified``: assigning it to entries removes them."""

    def __repr__(self) -> str:
        return "maskgrad.unspecified"

    def __reduce__(self) -> str:
        return "UNSPECIFIED"


UNSPECIFIED = _Unspecified()


def _plain_index(index: Any) -> Any:
    """An index must be known entirely: which entries an index with holes means cannot be said."""
    if isinstance(index, Entries):
        if not torch.compiler.is_compiling() and not is_transformed() and bool(index.mask.all()):
            return index.values
        remedy = "index.filled(False)" if index.mask.dtype == index.values.dtype else "index.compressed()"
        raise TypeError(
            f"index must be a plain tensor, found a MaskedTensor of dtype {index.values.dtype}: whether its "
            f"unspecified entries select anything is not known. Use {remedy}"
        )
    if isinstance(index, Tensor) and (index.is_floating_point() or index.is_complex()):
        raise IndexError(
            f"index tensors must have an integer or Boolean dtype, found {index.dtype}; use index.long()"
        )
    if isinstance(index, (tuple, list)):
        return type(index)(_plain_index(part) for part in index)
    return index


def getitem(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x[index]``, basic or advanced."""
    x, index = args[0], _plain_index(args[1])
    return Entries(x.values[index], x.mask[index]) if isinstance(x, Entries) else x[index]


def assigned(index: Any, value: Any) -> tuple[Any, Tensor | bool, Any]:
    """What ``x[index] = value`` writes: where, whether it is specified, and which values (None: none)."""
    index = _plain_index(index)
    if value is UNSPECIFIED:
        return index, False, None
    if isinstance(value, Entries):
        # where a position is named twice, PyTorch sends a gradient to both
        return index, value.mask, filled(value)
    return index, True, value


def where(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.where(condition, a, b)``: specified where the condition is and the chosen side is."""
    names = ("input", "condition", "other") if function is Tensor.where else ("condition", "input", "other")
    synonyms = {"self": "input"}
    arguments = paired(names, args) | {synonyms.get(k, k): v for k, v in kwargs.items()}
    if len(arguments) == 1:
        raise TypeError(
            "torch.where(condition) of a MaskedTensor has no meaning: whether unspecified entries are listed is not "
            "known. Use condition.filled(False).nonzero(as_tuple=True)"
        )
    if len(arguments) < 3:
        raise TypeError(
            "where needs a condition and two sides; found no 'other'. To remove the entries where the condition fails, "
            "assign mg.unspecified to them: x[~condition] = mg.unspecified"
        )
    condition: Any = arguments["condition"]
    sides: list[Any] = [arguments["input"], arguments["other"]]
    chosen: Tensor = values_of(condition)
    if chosen.dtype != torch.bool:
        raise TypeError(
            f"condition must be a Boolean tensor, found {chosen.dtype}; write it out, as in condition != 0"
        )
    values = torch.where(chosen, *map(values_of, sides))
    here, there = (_mask_of(side, chosen.device) for side in sides)
    mask = torch.where(chosen, here, there)
    if isinstance(condition, Entries):
        mask = mask & condition.mask
    return specified(values, mask)


def _mask_of(operand: Any, device: torch.device) -> Tensor:
    """The operand's mask, or a single True that stands for a fully specified one."""
    return operand.mask if isinstance(operand, Entries) else torch.ones((), dtype=torch.bool, device=device)


def masked_fill(input: Operand, mask: Operand, value: Any) -> Any:
    """Write ``value`` where ``mask`` says so: those entries become specified, the others stay as they are."""
    known, chosen = intersection((mask,)), values_of(mask)
    values = torch.masked_fill(values_of(input), chosen, values_of(value))
    written = torch.where(chosen, _mask_of(value, values.device), _mask_of(input, values.device))
    return specified(values, written if known is None else written & known)


def index_select(input: Entries, dim: int, index: Operand) -> Entries:
    """Rows, columns, … by position."""
    positions = _plain_index(index)
    return Entries(input.values.index_select(dim, positions), input.mask.index_select(dim, positions))


def _read(x: Operand, index: Operand, read: Callable[[Tensor, Tensor], Tensor]) -> Entries:
    """A position that is unspecified itself reads nothing, and its result is unspecified."""
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
    """Entries where a plain Boolean tensor is True, in row-major order, with their masks."""
    if isinstance(mask, Entries):
        raise UnsupportedOperationError(
            "torch.masked_select",
            "mask must be a plain tensor: whether its unspecified entries select is not known",
        )
    # of one shape, because torch.compile believes that no more is selected than the first operand has entries
    values, known, chosen = torch.broadcast_tensors(*input, mask)
    return Entries(torch.masked_select(values, chosen), torch.masked_select(known, chosen))


def nonzero(function: Callable[..., Any], input: Entries, *args: Any, **kwargs: Any) -> Any:
    """Positions of the specified entries that differ from zero: plain tensors, for there is nothing to miss in them."""
    return function((input.values != 0) & input.mask, *args, **kwargs)


READ = "that of the entries read"
WHERE_KNOWN = f"{READ}, where the position is specified"
MOVES = "moves back to the entries read"
OPERATIONS = (
    record("__getitem__", "indexing", getitem, READ, MOVES, functions=(Tensor.__getitem__, operator.getitem)),
    of_rule(index_select, "indexing", READ, MOVES),
    of_rule(
        where, "indexing", "specified where the condition is and the chosen side is", "to the chosen side"
    ),
    of_rule(masked_fill, "indexing", "specified where written, else as before", "to the entries kept"),
    *(of_rule(rule, "indexing", WHERE_KNOWN, MOVES) for rule in (gather, take, take_along_dim)),
    of_rule(masked_select, "indexing", READ, MOVES),
    *(
        record(name, "indexing", nonzero, "plain: the positions of specified entries")
        for name in ("nonzero", "nonzero_static", "argwhere")
    ),
)
