"""Reading the argument ``dim``, and moving specified entries together along a dimension.

The latter is deletion without data-dependent shapes, linear in the number of entries and free of branches:
positions come from running counts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels


def as_dim(dim: int, ndim: int) -> int:
    """One dimension counted from the front; a 0-d tensor has dimensions 0 and -1, as in torch."""
    rank = max(ndim, 1)
    if not -rank <= dim < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
        )
    return dim % rank


def as_dims(dim: Any, ndim: int) -> tuple[int, ...]:
    """The dimensions to reduce, counted from the front; None and () mean all of them."""
    if dim is None:
        return tuple(range(ndim))
    if isinstance(dim, int):
        dims: tuple[int, ...] = (as_dim(dim, ndim),)
    else:
        dims = tuple([as_dim(d, ndim) for d in dim]) or tuple(range(ndim))
        if len(set(dims)) != len(dims):
            raise RuntimeError(
                f"dim must not contain a dimension twice, got {tuple(dim)} for a tensor of {ndim} dimensions"
            )
    return dims if ndim else ()


def drop(kept: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Remove the dimensions of size 1 that a reduction with keepdim=True left."""
    return kept.squeeze(dims) if dims else kept


def size_along(x: Tensor, dim: int) -> int:
    """The length of a dimension (counted from the front); a 0-d tensor has one entry."""
    return x.shape[dim] if x.ndim else 1


def positions_along(x: Tensor, dim: int) -> Tensor:
    """0, 1, 2, … along ``dim``, in the shape of ``x``: an expanded view."""
    size = size_along(x, dim)
    shape = [size if d == dim else 1 for d in range(x.ndim)]
    return torch.arange(size, device=x.device).reshape(shape).expand(x.shape)


def ranks(mask: Tensor, dim: int, first: bool = True) -> Tensor:
    """Target index of each entry when specified ones move to the front (or back), keeping their order."""
    positions, upto = positions_along(mask, dim), mask.cumsum(dim)
    total = kernels.masked_count(mask, (dim,), True)
    if first:
        return torch.where(mask, upto - 1, total + positions - upto)
    return torch.where(mask, size_along(mask, dim) - total + upto - 1, positions - upto)


def _inverse(rank: Tensor, dim: int) -> Tensor:
    return torch.zeros_like(rank).scatter(dim, rank, positions_along(rank, dim))


def specified_first(mask: Tensor, dim: int) -> Tensor:
    """Positions along ``dim``: those of the specified entries in order, then the others."""
    return _inverse(ranks(mask, dim), dim)


def specified_last(mask: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Positions along ``dim``, those of the specified entries at the back, and the target index of each entry."""
    rank = ranks(mask, dim, first=False)
    return _inverse(rank, dim), rank


def previous_specified(mask: Tensor, dim: int) -> Tensor:
    """The position of the nearest specified entry before each entry, -1 if there is none."""
    upto = torch.where(mask, positions_along(mask, dim), -1).cummax(dim).values
    before = torch.full_like(upto.narrow(dim, 0, 1), -1)
    return torch.cat([before, upto.narrow(dim, 0, upto.shape[dim] - 1)], dim)
