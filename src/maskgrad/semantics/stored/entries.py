"""The data of rules for sparse layouts, and the helpers that they share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns import JaggedPattern, StoredPattern
from maskgrad.patterns.conversion import pattern_of_places
from maskgrad.patterns.stored import unravel_index, write_places
from maskgrad.semantics.entries import Entries

__all__ = [
    "SIGNED", "StoredEntries", "attach", "densified", "exploded", "flat", "from_places", "is_masked",
    "shape_of", "undivided",
]  # fmt: skip


@dataclass(eq=False, slots=True)
class StoredEntries:
    """Stored values and the pattern with their indices; every stored value is specified."""

    values: Tensor
    pattern: StoredPattern

    @property
    def shape(self) -> torch.Size:
        """The full shape."""
        return self.pattern.shape(self.values)

    @property
    def entries(self) -> Tensor:
        """The stored values as one tensor, (n, *dense)."""
        return self.pattern.flattened(self.values)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the sparse dimensions."""
        return self.pattern.sizes


def is_masked(operand: Any) -> bool:
    """Return whether an operand is masked, on whatever layout."""
    return isinstance(operand, (Entries, StoredEntries))


def shape_of(operand: Any) -> torch.Size:
    """The shape of a tensor, masked or not; () for a scalar."""
    if isinstance(operand, StoredEntries):
        return operand.shape
    if isinstance(operand, Entries):
        return operand.values.shape
    return operand.shape if isinstance(operand, Tensor) else torch.Size()


def exploded(x: StoredEntries) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Coordinates (d, n), entries (n,) and all sizes: dense dimensions are converted to coordinates, too."""
    if type(x.pattern) is JaggedPattern and not x.pattern.is_canonical:
        coordinates, entries, _ = exploded(StoredEntries(x.values, x.pattern.canonical()))
        at = x.pattern.at
        order = [*at, *[d for d in range(len(x.shape)) if d not in at]]
        back = [order.index(d) for d in range(len(order))]
        return coordinates[back], entries, tuple(x.shape)
    coordinates, entries = x.pattern.coordinates(), x.entries
    dense = tuple(entries.shape[1:])
    if not dense:
        return coordinates, entries, x.sizes
    per_entry, number = math.prod(dense), entries.shape[0]
    inner = unravel_index(torch.arange(per_entry, device=entries.device), dense)
    places = torch.cat([coordinates.repeat_interleave(per_entry, dim=1), inner.repeat(1, number)])
    return places, entries.reshape(-1), (*x.sizes, *dense)


def flat(x: StoredEntries) -> StoredEntries:
    """The same entries without dense dimensions: COO if there were any."""
    if len(x.shape) == len(x.sizes):
        return x
    return from_places(*exploded(x))


def from_places(coordinates: Tensor, entries: Tensor, sizes: tuple[int, ...]) -> StoredEntries:
    """Entries at distinct indices, in any order: COO."""
    pattern, order = pattern_of_places(coordinates, sizes, torch.sparse_coo)
    return StoredEntries(entries[order], pattern)


def undivided(entries: Tensor) -> Entries:
    """The result without sparse dimensions: one entry (1, *dense), or none (0, *dense)."""
    present = bool(entries.shape[0])
    # an empty result, too, depends on its input: gradients are zero, not None
    whole = entries[0] if present else entries.sum(0, dtype=entries.dtype)
    return Entries(
        whole, torch.full((), present, dtype=torch.bool, device=entries.device).expand(whole.shape)
    )


def densified(x: StoredEntries) -> Entries:
    """The same entries with a Boolean mask: allocates the whole shape, so only explicit conversions call it."""
    if type(x.pattern) is JaggedPattern:
        return _padded(x.values, x.pattern)
    coordinates, entries = x.pattern.coordinates(), x.entries
    values = torch.zeros(x.shape, dtype=entries.dtype, device=entries.device)
    mask = x.pattern.mask
    dense = entries.ndim - 1
    return Entries(
        write_places(values, coordinates, entries),
        mask.reshape(*mask.shape, *(1,) * dense).expand(x.shape) if dense else mask,
    )


#: PyTorch cannot index-assign these dtypes; their bits can be assigned.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _padded(rows: Tensor, pattern: JaggedPattern) -> Entries:
    """Rows at their positions, zeros elsewhere; the mask is kept in its smallest shape."""
    if rows.dtype in SIGNED:
        values, mask = _padded(rows.view(SIGNED[rows.dtype]), pattern)
        return Entries(values.view(rows.dtype), mask)
    sizes, features = pattern.sizes, rows.shape[1:]
    values = rows.new_zeros((pattern.frame.numel(), *features)).index_put((pattern.index,), rows)
    values = values.reshape(*sizes, *features)
    mask = pattern.mask.reshape(*sizes, *(1,) * len(features)).expand(values.shape)
    if pattern.is_canonical:
        return Entries(values, mask)
    order = tuple(range(len(sizes)))
    return Entries(values.movedim(order, pattern.at), mask.movedim(order, pattern.at))


def attach(result: Any, place: Callable[[Any], Any]) -> Any:
    """``place`` of a tensor, masked or not, or of each of several."""
    if isinstance(result, (tuple, list)) and not isinstance(result, Entries):
        parts = [attach(part, place) for part in result]
        return tuple(parts) if type(result) is tuple else type(result)(parts)
    return place(result) if isinstance(result, (Tensor, Entries)) else result
