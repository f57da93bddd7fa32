"""Elementwise operations on stored values: on the entries that all operands have.

Operands with the same pattern cost what the values alone cost. Otherwise one operand of full shape leads: its
indices are looked up in the other sparse operands and gathered from the dense ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.kernels import sort_rows
from maskgrad.mode import TRACED, can_read, mode
from maskgrad.patterns.algebra import find
from maskgrad.patterns.stored import StoredPattern, ravel_multi_index, read_places
from maskgrad.semantics.entries import Entries, rearranged
from maskgrad.semantics.signatures import paired
from maskgrad.semantics.stored.entries import StoredEntries, attach, flat, from_places, shape_of
from maskgrad.semantics.stored.views import expand

__all__ = ["aligned", "apply", "common_pattern", "elementwise", "lookup", "prelu"]


def elementwise(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply the called function to the entries that all operands have."""
    names = list(kwargs)
    operands = [*args, *kwargs.values()]

    def run(values: list[Any]) -> Any:
        return function(*values[: len(args)], **dict(zip(names, values[len(args) :], strict=True)))

    return apply(run, operands)


def apply(run: Callable[[list[Any]], Any], operands: list[Any]) -> Any:
    """``run`` on aligned values, and the result with its pattern."""
    values, wrap = aligned(operands)
    return attach(run(values), wrap)


def aligned(operands: list[Any]) -> tuple[list[Any], Callable[[Tensor], StoredEntries]]:
    """Values of all operands at their common entries, and a function that returns a result with them."""
    common = common_pattern(operands, read=True)
    if common is not None:
        parts = [o.values if type(o) is StoredEntries else o for o in operands]
        return parts, lambda values: StoredEntries(values, common)
    # with a masked scalar, nothing is specified
    alive = all(bool(o.mask) for o in operands if isinstance(o, Entries) and not o.mask.ndim)
    operands = [o.values if isinstance(o, Entries) and not o.mask.ndim else o for o in operands]
    tensors = [o for o in operands if isinstance(o, StoredEntries) or len(shape_of(o))]
    stored = [o for o in tensors if isinstance(o, StoredEntries)]
    shape = torch.broadcast_shapes(*[shape_of(o) for o in tensors])
    if _leading(stored, shape) is None or _divided_differently(tensors):
        operands = [flat(o) if isinstance(o, StoredEntries) else o for o in operands]
        stored = [o for o in operands if isinstance(o, StoredEntries)]
    leader = _leading(stored, shape)
    if leader is None:  # the result has more entries than each operand
        leader = expand(stored[0], shape)
        operands = [leader if o is stored[0] else o for o in operands]
    coordinates = leader.pattern.coordinates()
    kept = None if alive else coordinates.new_zeros(coordinates.shape[1], dtype=torch.bool)
    values = []
    for operand in operands:
        value, present = _aligned(operand, leader, coordinates)
        values.append(value)
        if present is not None:
            kept = present if kept is None else kept & present
    pattern = leader.pattern
    if kept is not None and mode() not in TRACED and bool(kept.all()):
        kept = None
    if kept is None:  # the others contain all entries of the leader, whose pattern is kept
        return values, lambda v: StoredEntries(pattern.gathered(v), pattern)
    values = [v[kept] if isinstance(v, Tensor) and v.ndim else v for v in values]
    places = coordinates[:, kept]
    return values, lambda v: from_places(places, v, pattern.sizes)


def common_pattern(operands: Sequence[Any], read: bool = False) -> StoredPattern | None:
    """The pattern shared by all operands except scalars: the same tensors, or, if they may be ``read``, equal ones."""
    pattern, ndim = None, 0
    for operand in operands:
        if type(operand) is StoredEntries:
            if pattern is None:
                pattern, ndim = operand.pattern, operand.values.ndim
            elif operand.values.ndim != ndim or not (
                operand.pattern is pattern
                or operand.pattern.is_same(pattern)
                or (read and mode() not in TRACED and _is_equal(operand.pattern, pattern))
            ):
                return None
        elif isinstance(operand, Entries) or (isinstance(operand, Tensor) and operand.ndim):
            return None
    return pattern


def _is_equal(a: StoredPattern, b: StoredPattern) -> bool:
    return a.facts() == b.facts() and all(map(torch.equal, a.tensors(), b.tensors()))


def _leading(stored: list[StoredEntries], shape: torch.Size) -> StoredEntries | None:
    """The first operand with the sparse dimensions of the result."""
    rank = len(shape)
    return next((o for o in stored if o.sizes == shape[: len(o.sizes)] and len(o.shape) == rank), None)


def _divided_differently(tensors: list[Any]) -> bool:
    """Return whether operands have different dense dimensions, so that entries must be scalars."""
    stored = [o for o in tensors if isinstance(o, StoredEntries)]
    dense = {len(o.shape) - len(o.sizes) for o in stored}
    inner = max(dense)
    if len(dense) > 1 or (inner and any(len(o.shape) <= inner for o in stored)):
        return True
    masks = [o.mask for o in tensors if isinstance(o, Entries)]
    return any(size != 1 for mask in masks for size in mask.shape[max(mask.ndim - inner, 0) :])


def _aligned(operand: Any, leader: StoredEntries, coordinates: Tensor) -> tuple[Any, Tensor | None]:
    """An operand's entries at the indices of the leader, and which of these it has (None: all)."""
    if operand is leader:
        return leader.entries, None
    if isinstance(operand, StoredEntries):
        offset = len(leader.sizes) - len(operand.sizes)
        at = [
            coordinates[offset + d] if size != 1 else torch.zeros_like(coordinates[0])
            for d, size in enumerate(operand.sizes)
        ]
        return lookup(operand, torch.stack(at) if at else coordinates[:0])
    if isinstance(operand, Entries):
        values, mask = operand
        present = _gathered(mask, leader, coordinates)
        # in dense dimensions the mask has one entry, or _divided_differently would have been true
        return _gathered(values, leader, coordinates), present.reshape(present.shape[0])
    if isinstance(operand, Tensor) and operand.ndim:
        return _gathered(operand, leader, coordinates), None
    return operand, None


def _gathered(dense: Tensor, leader: StoredEntries, coordinates: Tensor) -> Tensor:
    """Entries of a (broadcast) dense tensor at the leader's indices, without expanding it."""
    dense = dense.reshape(*(1,) * (len(leader.shape) - dense.ndim), *dense.shape)
    at = [
        coordinates[d] if dense.shape[d] != 1 else torch.zeros_like(coordinates[d])
        for d in range(len(leader.sizes))
    ]
    return dense[tuple(at)] if at else read_places(dense, coordinates)


def lookup(x: StoredEntries, places: Tensor) -> tuple[Tensor, Tensor]:
    """Entries (n, *dense) at ``places`` (s, n), and which of them exist (n,); the others are arbitrary."""
    known, order = x.pattern.remembered("sorted", lambda: _sorted(x.pattern))
    present, where = find(ravel_multi_index(places, x.sizes), known)
    entries = x.entries
    if not entries.shape[0]:
        nothing = entries.new_zeros((places.shape[1], *entries.shape[1:]))
        # what comes of nothing, too, depends on it: gradients are zero, not None
        return nothing + entries.sum(0) if entries.requires_grad else nothing, present
    return entries[where if order is None else order[where]], present


def _sorted(pattern: StoredPattern) -> tuple[Tensor, Tensor | None]:
    """The row-major indices, ascending, and the permutation that sorts them, if any is needed."""
    known = ravel_multi_index(pattern.coordinates(), pattern.sizes)
    if can_read(known) and not bool((known[1:] <= known[:-1]).any()):
        return known, None
    _, order, ascending = sort_rows(known)
    return ascending, order


def prelu(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``prelu``: the weight applies to dimension 1 of the input."""
    arguments = paired(("input", "weight"), args) | kwargs
    x, weight = arguments["input"], arguments["weight"]
    size, sizes = shape_of(weight).numel(), shape_of(x)
    if isinstance(weight, StoredEntries):
        raise UnsupportedLayoutError("prelu with a sparse weight", weight.pattern.layout)
    if size != 1 and (len(sizes) < 2 or sizes[1] != size):
        raise RuntimeError("prelu: weight must be a dense tensor with one entry, or one for each channel")
    shape = (-1, *(1,) * (len(sizes) - 2)) if size != 1 else ()
    weight = rearranged(weight, lambda part: part.reshape(shape))
    return apply(lambda v: torch.where(v[0] > 0, v[0], v[1] * v[0]), [x, weight])
