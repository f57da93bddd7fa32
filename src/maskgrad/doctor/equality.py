"""Whether tensors are equal entry for entry, with as few passes as can tell."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["differing", "same"]


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal entry for entry; NaN equals NaN."""
    if a.layout is torch.jagged:
        return same(a.values(), b.values())
    if a.layout is not torch.strided:
        if a.layout is torch.sparse_coo:
            a, b = a.coalesce(), b.coalesce()
            return same(a._indices(), b._indices()) and same(a._values(), b._values())
        return same(a.to_dense(), b.to_dense())
    if a.shape != b.shape:
        return False
    if torch.equal(a, b):
        return True
    return not _has_no_nan(a) and not bool(differing(a, b).any())


def differing(a: Tensor, b: Tensor) -> Tensor:
    """Boolean tensor: True where entries differ; NaN equals NaN."""
    if a.layout is torch.jagged:
        a, b = a.values(), b.values()
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    unequal = a != b
    if not _has_no_nan(a):
        unequal &= ~(a.isnan() & b.isnan())
    return unequal


def _has_no_nan(tensor: Tensor) -> bool:
    """Whether there is surely no NaN: a sum that is a number is one pass, a look at each entry is three."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if tensor.element_size() == 1:
        return False
    total = tensor.sum().item()
    return bool(total == total)
