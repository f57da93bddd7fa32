"""Equality of patterns, and lookup of positions, by row-major indices."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.patterns.pattern import Pattern
from maskgrad.patterns.stored import StoredPattern, ravel_multi_index

__all__ = ["equal", "find"]


def find(keys: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """For each of ``keys``: whether it is in the ascending ``among``, and its position (arbitrary if not)."""
    if not among.numel():
        return torch.zeros_like(keys, dtype=torch.bool), torch.zeros_like(keys)
    at = torch.searchsorted(among, keys).clamp_(max=among.shape[0] - 1)
    return among[at] == keys, at


def equal(a: Pattern, b: Pattern) -> bool:
    """Return whether both specify the same positions of the same shape, in any layout."""
    (keys, sizes), (others, other_sizes) = _places(a), _places(b)
    if sizes != other_sizes:
        raise ValueError(f"patterns must have the same shape, found {sizes} and {other_sizes}")
    return torch.equal(keys, others)


def _places(pattern: Pattern) -> tuple[Tensor, tuple[int, ...]]:
    """The row-major indices of all specified positions, ascending, and the sizes."""
    if isinstance(pattern, StoredPattern):
        return torch.sort(ravel_multi_index(pattern.coordinates(), pattern.sizes)).values, pattern.sizes
    return pattern.mask.reshape(-1).nonzero().squeeze(1), tuple(pattern.mask.shape)
