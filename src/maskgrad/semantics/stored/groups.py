"""Groups of entries that a reduction brings together: those that differ in the reduced dimensions only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns.stored import keys_of, places_of
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.stored.entries import Stored, exploded, from_sorted_places, undivided, widened

__all__ = ["Groups", "group", "grouped", "reduced"]


@dataclass(frozen=True)
class Groups:
    """Which group each entry belongs to (n,), how many there are, and where they are (r, g), in row-major order."""

    index: Tensor
    number: int
    coordinates: Tensor
    sizes: tuple[int, ...]

    def sum(self, entries: Tensor) -> Tensor:
        """Sum of each group, (n, *dense) -> (g, *dense), in a wider precision than that of the entries."""
        wide = widened(entries)
        if self.number == 1:
            return wide.sum(0, keepdim=True)
        return wide.new_zeros((self.number, *wide.shape[1:])).index_add(0, self.index, wide)

    def count(self) -> Tensor:
        """Number of entries of each group (g,), at least 1: a group without entries does not exist."""
        return torch.bincount(self.index, minlength=self.number)

    def counts(self, entries: Tensor) -> Tensor:
        """:meth:`count`, shaped to divide sums of these entries."""
        return self.count().reshape(-1, *(1,) * (entries.ndim - 1))

    def extremum(self, entries: Tensor, largest: bool) -> Tensor:
        """Largest or smallest entry of each group; no gradient."""
        index = self.index.reshape(-1, *(1,) * (entries.ndim - 1)).expand_as(entries)
        start = entries.detach().new_zeros((self.number, *entries.shape[1:]))
        return start.scatter_reduce(
            0, index, entries.detach(), "amax" if largest else "amin", include_self=False
        )


def group(coordinates: Tensor, sizes: tuple[int, ...], dims: tuple[int, ...]) -> Groups:
    """Group places by the dimensions that are not in ``dims``; only groups with entries are listed."""
    kept = [d for d in range(len(sizes)) if d not in dims]
    rest = tuple(sizes[d] for d in kept)
    if not kept:
        number = 1 if coordinates.shape[1] else 0
        index = coordinates.new_zeros(coordinates.shape[1])
        return Groups(index, number, coordinates.new_zeros((0, number)), ())
    keys = keys_of(coordinates[kept], rest)
    if bool((keys[1:] >= keys[:-1]).all()):  # rows of a CSR tensor: no sort is needed
        distinct, index = torch.unique_consecutive(keys, return_inverse=True)
    else:
        distinct, index = torch.unique(keys, return_inverse=True)
    return Groups(index, distinct.shape[0], places_of(distinct, rest), rest)


def grouped(x: Stored, dim: Any) -> tuple[Groups, Tensor, tuple[int, ...]]:
    """Groups of the entries that differ in ``dim`` only; dense dimensions stay aside unless they are reduced too."""
    dims = as_dims(dim, len(x.shape))
    if all(d < len(x.sizes) for d in dims):
        return group(x.pattern.coordinates(), x.sizes, dims), x.entries, dims
    coordinates, entries, sizes = exploded(x)
    return group(coordinates, sizes, dims), entries, dims


def reduced(
    values: Tensor, groups: Groups, dims: tuple[int, ...], rank: int, keepdim: bool
) -> Stored | Entries:
    """One value for each group, at its place; without a pattern if no sparse dimension remains."""
    if not groups.sizes:
        whole = undivided(values)
        if not keepdim:
            return whole
        shape = (*(1,) * (rank - whole.values.ndim), *whole.values.shape)
        return Entries(whole.values.reshape(shape), whole.mask.reshape(shape))
    coordinates, sizes = groups.coordinates, groups.sizes
    if keepdim:
        rows, kept = iter(coordinates), iter(sizes)
        spread, all_sizes = [], []
        for d in range(len(sizes) + len(dims)):
            spread.append(coordinates.new_zeros(groups.number) if d in dims else next(rows))
            all_sizes.append(1 if d in dims else next(kept))
        coordinates, sizes = torch.stack(spread), tuple(all_sizes)
    return from_sorted_places(coordinates, values, sizes)
