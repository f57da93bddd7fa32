"""Deletion without shapes that depend on data: specified entries are moved together along a dimension.

Everything here is linear in the number of entries and free of branches: positions come from running counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad import kernels


def size_along(x: Tensor, dim: int) -> int:
    """The length of a dimension (counted from the front); a 0-d tensor has one entry."""
    return x.shape[dim] if x.ndim else 1


def positions_along(x: Tensor, dim: int) -> Tensor:
    """0, 1, 2, … along ``dim``, in the shape of ``x``: an expanded view."""
    size = size_along(x, dim)
    shape = [size if d == dim else 1 for d in range(x.ndim)]
    return torch.arange(size, device=x.device).reshape(shape).expand(x.shape)


def ranks(mask: Tensor, dim: int, first: bool = True) -> Tensor:
    """Where each entry goes when the specified ones are moved to the front (to the back), all keeping their order."""
    positions, upto = positions_along(mask, dim), mask.cumsum(dim)
    total = kernels.masked_count(mask, (dim,), True)
    if first:
        return torch.where(mask, upto - 1, total + positions - upto)
    return torch.where(mask, size_along(mask, dim) - total + upto - 1, positions - upto)


def _inverse(rank: Tensor, dim: int) -> Tensor:
    return torch.zeros_like(rank).scatter(dim, rank, positions_along(rank, dim))


def specified_first(mask: Tensor, dim: int) -> Tensor:
    """Positions along ``dim``: those of the specified entries in their order, then those of the others."""
    return _inverse(ranks(mask, dim), dim)


def specified_last(mask: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Positions along ``dim``, those of the specified entries at the back, and where each entry went."""
    rank = ranks(mask, dim, first=False)
    return _inverse(rank, dim), rank


def previous_specified(mask: Tensor, dim: int) -> Tensor:
    """The position of the nearest specified entry before each entry, -1 where there is none."""
    upto = torch.where(mask, positions_along(mask, dim), -1).cummax(dim).values
    before = torch.full_like(upto.narrow(dim, 0, 1), -1)
    return torch.cat([before, upto.narrow(dim, 0, upto.shape[dim] - 1)], dim)
