"""Groups of entries that a reduction brings together: those that differ in the reduced dimensions only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maskgrad.patterns.stored import keys_of, places_of

__all__ = ["Groups", "group"]


@dataclass(frozen=True)
class Groups:
    """Which group each entry belongs to (n,), how many there are, and where they are (r, g), in row-major order."""

    index: Tensor
    number: int
    coordinates: Tensor
    sizes: tuple[int, ...]

    def sum(self, entries: Tensor) -> Tensor:
        """Sum of each group, halves in float32 (n, *dense) -> (g, *dense)."""
        wide = entries.float() if entries.dtype in (torch.float16, torch.bfloat16) else entries
        zeros = wide.new_zeros((self.number, *wide.shape[1:]))
        return zeros.index_add(0, self.index, wide)

    def count(self) -> Tensor:
        """Number of entries of each group (g,), at least 1: a group without entries does not exist."""
        return torch.bincount(self.index, minlength=self.number)

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
