"""Sets of places: intersection, union, difference, equality and inclusion of patterns, by their row-major numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.patterns.pattern import Pattern
from maskgrad.patterns.stored import StoredPattern, ravel_multi_index

__all__ = ["difference", "equal", "find", "intersection", "is_subset", "sorted_keys", "union"]


def sorted_keys(pattern: Pattern) -> Tensor:
    """The row-major numbers of all specified places, ascending."""
    if isinstance(pattern, StoredPattern):
        return torch.sort(ravel_multi_index(pattern.coordinates(), pattern.sizes)).values
    return pattern.mask.reshape(-1).nonzero().squeeze(1)


def find(keys: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """For each of ``keys``: is it in the ascending ``among``, and where (anywhere if it is not)."""
    if not among.numel():
        return torch.zeros_like(keys, dtype=torch.bool), torch.zeros_like(keys)
    at = torch.searchsorted(among, keys).clamp_(max=among.shape[0] - 1)
    return among[at] == keys, at


def _sizes(pattern: Pattern) -> tuple[int, ...]:
    return pattern.sizes if isinstance(pattern, StoredPattern) else tuple(pattern.mask.shape)


def _keys(a: Pattern, b: Pattern) -> tuple[Tensor, Tensor]:
    if _sizes(a) != _sizes(b):
        raise ValueError(f"patterns must have the same shape, found {_sizes(a)} and {_sizes(b)}")
    return sorted_keys(a), sorted_keys(b)


def intersection(a: Pattern, b: Pattern) -> Tensor:
    """The row-major numbers specified in both, ascending."""
    left, right = _keys(a, b)
    shared: Tensor = find(left, right)[0]
    return left[shared]


def union(a: Pattern, b: Pattern) -> Tensor:
    """The row-major numbers specified in one or both, ascending."""
    either: Tensor = torch.unique(torch.cat(_keys(a, b)))
    return either


def difference(a: Pattern, b: Pattern) -> Tensor:
    """The row-major numbers specified in ``a`` but not in ``b``, ascending."""
    left, right = _keys(a, b)
    absent: Tensor = find(left, right)[0].logical_not()
    return left[absent]


def is_subset(a: Pattern, b: Pattern) -> bool:
    """Whether everything specified in ``a`` is specified in ``b``."""
    left, right = _keys(a, b)
    return bool(find(left, right)[0].all())


def equal(a: Pattern, b: Pattern) -> bool:
    """Whether both specify the same places, however they are stored."""
    left, right = _keys(a, b)
    return torch.equal(left, right)
