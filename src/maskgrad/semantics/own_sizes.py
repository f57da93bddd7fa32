"""Sizes of the samples of a padded batch: length, or height and width."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskgrad.errors import UndefinedOnMaskedError
from maskgrad.kernels.smallest import smallest
from maskgrad.mode import can_read

__all__ = ["blocks", "own_sizes"]

PADDED = "sequences must be padded at the end only, and this mask has holes"


def own_sizes(
    name: str, remedy: str, mask: Tensor, dims: Sequence[int], alike: Sequence[int] = ()
) -> list[Tensor]:
    """Sizes of the samples along ``dims``, kept with size 1, as ``alike``; a mask with visible holes is refused."""
    few = smallest(mask)
    whole = few.all(tuple(alike), keepdim=True) if alike else few
    whole = whole.expand([mask.shape[d] if d in dims else size for d, size in enumerate(whole.shape)])
    sizes = []
    for dim in dims:
        others = tuple([d for d in dims if d != dim])
        line = whole.any(others, keepdim=True) if others else whole
        sizes.append(line.cumprod(dim).sum(dim, keepdim=True))
    if can_read(mask) and bool((blocks(sizes, dims, mask.shape) != few).any()):
        raise UndefinedOnMaskedError(name, PADDED, remedy)
    return sizes


def blocks(sizes: Sequence[Tensor], dims: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Return the mask of samples of these sizes, of size 1 in other dimensions where the sizes are."""
    rank = len(shape)
    found = None
    for size, dim in zip(sizes, dims, strict=True):
        places = torch.arange(shape[dim], device=size.device).reshape(-1, *(1,) * (rank - 1 - dim))
        inside = places < size
        found = inside if found is None else found & inside
    assert found is not None
    return found
