"""Groups of entries that a reduction combines: entries that differ in the reduced dimensions only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels.segments import Rows, widened
from maskgrad.mode import can_read
from maskgrad.patterns import CompressedPattern, CoordinatePattern, JaggedPattern, StoredPattern
from maskgrad.patterns.compressed import BY_ROW
from maskgrad.patterns.stored import ravel_multi_index, unravel_index
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.stored.entries import StoredEntries, exploded, undivided

__all__ = ["Groups", "group", "group_of", "grouped", "reduced"]


@dataclass(frozen=True)
class Groups(Rows):
    """Groups as segments of the n entries, and their indices: (r, g), in row-major order.

    Group k consists of the entries ``order[pointers[k]:pointers[k + 1]]``; without an order it is contiguous.
    Empty groups are omitted; unless ``present`` (g,) says which are not empty: then all are included.
    """

    coordinates: Tensor
    sizes: tuple[int, ...]
    present: Tensor | None = None

    def sum(self, entries: Tensor) -> Tensor:
        """Sum of each group, (n, *dense) -> (g, *dense), in a wider precision than that of the entries."""
        return kernels.segment_sum(entries, self, widened(entries.new_empty(0)).dtype)

    def only(self, which: Tensor) -> Groups:
        """Select some of the groups (g,), of which only the indices are used afterwards."""
        ends = torch.cat([self.pointers[:1] * 0, self.count()[which].cumsum(0)])
        return Groups(ends, self.order, self.entries, self.coordinates[:, which], self.sizes)

    def pattern(self, at: tuple[int, ...], rank: int) -> CoordinatePattern:
        """The indices of the groups in a result of ``rank`` dimensions, of size 1 except ``at`` the kept ones."""
        rows, sizes = list(self.coordinates.new_zeros((rank, self.number))), [1] * rank
        for row, size, dim in zip(self.coordinates, self.sizes, at, strict=True):
            rows[dim], sizes[dim] = row, size
        return CoordinatePattern(torch.stack(rows), tuple(sizes))


def group(coordinates: Tensor, sizes: tuple[int, ...], dims: tuple[int, ...]) -> Groups:
    """Group indices by the dimensions that are not in ``dims``; only groups with entries are listed."""
    kept = [d for d in range(len(sizes)) if d not in dims]
    rest = tuple(sizes[d] for d in kept)
    entries = coordinates.shape[1]
    if not kept:
        return _one_group(entries, coordinates.device)
    keys = ravel_multi_index(coordinates[kept], rest)
    # checked first, as graphs must not depend on it
    if can_read(keys) and bool((keys[1:] >= keys[:-1]).all()):  # rows of a CSR tensor: no sort is needed
        distinct, counts = torch.unique_consecutive(keys, return_counts=True)
        pointers, order = torch.nn.functional.pad(counts.cumsum(0), (1, 0)), None
    else:
        pointers, order, distinct = kernels.sort_rows(keys)
    return Groups(pointers, order, entries, unravel_index(distinct, rest), rest)


def group_of(pattern: StoredPattern, dims: tuple[int, ...]) -> Groups:
    """Group the entries of a pattern, which caches the result."""
    return pattern.remembered(("groups", dims), lambda: _group_of(pattern, dims))


def _group_of(pattern: StoredPattern, dims: tuple[int, ...]) -> Groups:
    if isinstance(pattern, CompressedPattern) and len(pattern.sizes) == 2 and not pattern.blocksize:
        entries, line = pattern.positions.shape[0], 0 if pattern.layout in BY_ROW else 1
        if dims == (1 - line,):  # the lines as stored, without empty ones
            pointers = pattern.pointers.to(torch.int64)
            present = pointers.diff().nonzero().squeeze(1)
            ends = torch.cat([pointers[present], pointers[-1:]])
            return Groups(ends, None, entries, present.unsqueeze(0), (pattern.sizes[line],))
        if set(dims) == {0, 1}:
            return _one_group(entries, pattern.positions.device)
    if (
        type(pattern) is JaggedPattern and not pattern.is_flat and dims == (len(pattern.sizes) - 1,)
    ):  # all sequences: empty ones may be unknown
        number, nowhere = pattern.index.shape[0], pattern.offsets.new_empty((0, 0))
        return Groups(pattern.offsets, None, number, nowhere, pattern.sizes[:-1], pattern.lengths() > 0)
    return group(pattern.coordinates(), pattern.sizes, dims)


def _one_group(entries: int, device: torch.device) -> Groups:
    pointers = torch.tensor([0, entries] if entries else [0], device=device)
    return Groups(pointers, None, entries, pointers.new_zeros((0, len(pointers) - 1)), ())


def grouped(x: StoredEntries, dim: Any) -> tuple[Groups, Tensor, tuple[int, ...]]:
    """Groups of the entries that differ in ``dim`` only; dense dimensions are kept unless they are reduced, too."""
    dims = as_dims(dim, len(x.shape))
    if all(d < len(x.sizes) for d in dims):
        return group_of(x.pattern, dims), x.entries, dims
    if len(dims) == len(x.shape):  # everything: indices do not matter
        entries = x.entries.reshape(-1)
        return _one_group(entries.shape[0], entries.device), entries, dims
    coordinates, entries, sizes = exploded(x)
    return group(coordinates, sizes, dims), entries, dims


def reduced(
    found: Tensor | Entries, groups: Groups, dims: tuple[int, ...], rank: int, keepdim: bool
) -> StoredEntries | Entries:
    """One value for each group, at its index, unless it is masked; without a pattern if no sparse dimension remains."""
    values, known = found if isinstance(found, Entries) else (found, None)
    if groups.present is not None:  # the last sparse dimension is removed
        present = groups.present if known is None else groups.present & known
        few = present.reshape(*groups.sizes, *(1,) * (values.ndim - 1))
        parts = [values.reshape(*groups.sizes, *values.shape[1:])]
        parts.append(few.expand(parts[0].shape))
        return Entries(*[part.unsqueeze(dims[0]) for part in parts] if keepdim else parts)
    if known is not None:
        which = known.nonzero().squeeze(1)
        values, groups = values[which], groups.only(which)
    if not groups.sizes:
        whole = undivided(values)
        if not keepdim:
            return whole
        shape = (*(1,) * (rank - whole.values.ndim), *whole.values.shape)
        return Entries(whole.values.reshape(shape), whole.mask.reshape(shape))
    kept = len(groups.sizes) + (len(dims) if keepdim else 0)
    at = [d for d in range(kept) if not keepdim or d not in dims]
    return StoredEntries(values, groups.pattern(tuple(at), kept))
