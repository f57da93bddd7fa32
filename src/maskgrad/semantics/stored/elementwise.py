"""Elementwise operations on stored values: on the entries that all operands have.

Operands with one and the same pattern cost what the bare values cost. Otherwise the operand of full shape leads: its
places are looked up in the other sparse operands and gathered from the dense ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.patterns.algebra import find
from maskgrad.patterns.stored import keys_of
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.stored.entries import Stored, from_places, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["apply", "elementwise", "same_pattern"]


def elementwise(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply the function that was called to the entries that all operands have."""
    names = list(kwargs)
    operands = [*args, *kwargs.values()]

    def run(values: list[Any]) -> Any:
        return function(*values[: len(args)], **dict(zip(names, values[len(args) :], strict=True)))

    return apply(run, operands)


def apply(run: Callable[[list[Any]], Any], operands: list[Any]) -> Any:
    """``run`` on aligned values, and the result with its pattern."""
    tensors = [o for o in operands if isinstance(o, (Stored, Entries, Tensor)) and len(shape_of(o))]
    stored = [o for o in tensors if isinstance(o, Stored)]
    if len(stored) == len(tensors) and same_pattern(stored):
        result = run([o.values if isinstance(o, Stored) else _scalar(o) for o in operands])
        return _attach(result, lambda values: Stored(values, stored[0].pattern))
    shape = torch.broadcast_shapes(*[shape_of(o) for o in tensors])
    leader = next((o for o in stored if o.shape == shape), None)
    if leader is None:
        raise UnsupportedLayoutError(
            "an elementwise operation whose result is larger than each of its sparse operands",
            stored[0].pattern.layout,
            tuple(shape),
        )
    coordinates = leader.pattern.coordinates()
    sparse = len(leader.pattern.sizes)
    kept: Tensor | None = None
    found: list[tuple[Any, Tensor | None]] = []
    for operand in operands:
        value, present = _aligned(operand, leader, coordinates, sparse)
        found.append((value, present))
        if present is not None:
            kept = present if kept is None else kept & present
    values = [v for v, _ in found]
    if kept is None:  # only dense partners: the pattern of the leader stands
        return _attach(run(values), lambda v: Stored(leader.pattern.gathered(v), leader.pattern))
    values = [v[kept] if isinstance(v, Tensor) and v.ndim else v for v in values]
    places = coordinates[:, kept]
    return _attach(run(values), lambda v: from_places(places, v, leader.pattern.sizes, leader.pattern))


def same_pattern(stored: list[Stored]) -> bool:
    """Whether all operands have one pattern: the same object, or the same index tensors."""
    first = stored[0].pattern
    return all(
        o.pattern is first
        or (
            o.pattern.facts() == first.facts()
            and all(a is b for a, b in zip(o.pattern.tensors(), first.tensors(), strict=True))
        )
        for o in stored[1:]
    )


def _scalar(operand: Any) -> Any:
    return operand.values if isinstance(operand, Entries) else operand


def _attach(result: Any, wrap: Callable[[Tensor], Stored]) -> Any:
    if isinstance(result, Tensor):
        return wrap(result)
    parts = [wrap(part) for part in result]
    return tuple(parts) if type(result) is tuple else type(result)(parts)


def _aligned(operand: Any, leader: Stored, coordinates: Tensor, sparse: int) -> tuple[Any, Tensor | None]:
    """An operand's entries at the places of the leader, and which of these it has (None: all)."""
    if operand is leader:
        return leader.entries, None
    if isinstance(operand, Stored):
        return _looked_up(operand, leader, coordinates)
    if isinstance(operand, Entries):
        values, mask = operand
        if mask.ndim > 0 and mask.ndim - 1 >= len(leader.shape) - sparse and len(leader.shape) > sparse:
            raise UnsupportedLayoutError(
                "an elementwise operation of a hybrid sparse tensor and one with a Boolean mask",
                leader.pattern.layout,
                tuple(leader.shape),
            )
        return _gathered(values, leader, coordinates, sparse), _gathered(mask, leader, coordinates, sparse)
    if isinstance(operand, Tensor) and operand.ndim:
        return _gathered(operand, leader, coordinates, sparse), None
    return operand, None


def _gathered(dense: Tensor, leader: Stored, coordinates: Tensor, sparse: int) -> Tensor:
    """Entries of a (broadcast) dense tensor at the leader's places, without expanding it."""
    if dense.ndim == 0:
        return dense
    rank = len(leader.shape)
    dense = dense.reshape(*(1,) * (rank - dense.ndim), *dense.shape)
    at = [coordinates[d] if dense.shape[d] != 1 else torch.zeros_like(coordinates[d]) for d in range(sparse)]
    return dense[tuple(at)]


def _looked_up(operand: Stored, leader: Stored, coordinates: Tensor) -> tuple[Tensor, Tensor]:
    """Entries of another sparse operand at the leader's places; of size 1 where it broadcasts."""
    sizes = operand.pattern.sizes
    offset = len(leader.pattern.sizes) - len(sizes)
    if offset < 0 or len(operand.shape) - len(sizes) != len(leader.shape) - len(leader.pattern.sizes):
        raise UnsupportedLayoutError(
            "an elementwise operation of sparse tensors with different numbers of dense dimensions",
            operand.pattern.layout,
            tuple(leader.shape),
        )
    at = torch.stack(
        [
            coordinates[offset + d] if size != 1 else torch.zeros_like(coordinates[0])
            for d, size in enumerate(sizes)
        ]
    )
    known = keys_of(operand.pattern.coordinates(), sizes)
    order = torch.argsort(known)
    present, where = find(keys_of(at, sizes), known[order])
    entries = operand.entries
    if not entries.shape[0]:
        return leader.entries.new_zeros(
            (coordinates.shape[1], *entries.shape[1:]), dtype=entries.dtype
        ), present
    return entries[order[where]], present
