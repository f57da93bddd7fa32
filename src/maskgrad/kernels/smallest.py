"""Masks in their smallest shape: size 1 along each dimension in which a mask repeats.

A mask that repeats (padding is the same for all features) is kept as an expanded view, which has stride 0 there. So
every mask has the shape of its values, but is combined, counted, copied and saved in its smallest shape: see
docs/decisions/0023-masks-that-repeat.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskgrad.mode import TRACED, can_read, mode

#: Entries from which the maximum of a mask's bytes is faster than torch.any, which has half the overhead.
SHORT = 2_048


def repeats(mask: Tensor) -> bool:
    """Return whether a mask is known to repeat along a dimension."""
    for stride in mask.stride():  # noqa: SIM110 (a generator costs as much as the checks)
        if type(stride) is int and stride == 0:  # a symbol is not read: graphs are for unknown sizes
            return True
    return False


def is_one(size: int) -> bool:
    """Return whether a size is known to be 1."""
    return type(size) is int and size == 1


def in_rows(mask: Tensor, dim: int = -1) -> bool:
    """Return whether each row, along a dimension, is known to be specified or masked as a whole."""
    if not mask.ndim:
        return False
    size, stride = mask.shape[dim], mask.stride(dim)
    return is_one(size) or (type(size) is int and type(stride) is int and stride == 0 and size > 1)


def smallest(mask: Tensor) -> Tensor:
    """A view of ``mask`` with size 1 in each dimension in which it is known to repeat."""
    if repeats(mask):
        for dim, (size, stride) in enumerate(zip(mask.shape, mask.stride(), strict=True)):
            if type(size) is int and type(stride) is int and stride == 0 and size > 1:
                mask = mask.narrow(dim, 0, 1)
    return mask


def intersected(a: Tensor, b: Tensor) -> Tensor:
    """``a & b``, computed and kept in the smallest shape; the same object twice costs nothing."""
    if a is b:
        return a
    if not (repeats(a) or repeats(b)):
        return _both(a, b)
    shape = a.shape if a.shape == b.shape else torch.broadcast_shapes(a.shape, b.shape)
    for one, other in ((a, b), (b, a)):
        if is_known_complete(one) and other.shape == shape:
            return other
    return _both(smallest(a), smallest(b)).expand(shape)


def any_of_each(mask: Tensor, dims: Sequence[int], shape: torch.Size) -> Tensor:
    """``mask.any(dims, keepdim=True)``, expanded to a shape.

    If masks can be read and each slice has an entry, one True stands for all entries: an MLP gains 4 %.
    """
    found = reduced(smallest(mask), dims)
    return found.as_strided(shape, (0,) * len(shape)) if is_complete(found) else found.expand(shape)


def is_known_complete(mask: Tensor) -> bool:
    """Return whether a mask can be read, and one True stands for all its entries."""
    one = can_read(mask) and mask.numel() > 0 and not any(mask.stride())
    return one and bool(mask.as_strided((), ()).item())


def _both(a: Tensor, b: Tensor) -> Tensor:
    """``a & b``, of bytes: PyTorch has no vectors for Booleans that broadcast (16 x 128 x 128: 266 us, bytes 13)."""
    if a.shape[-1:] == b.shape[-1:] or not can_read(a, b):
        return a & b
    return (a.view(torch.uint8) & b.view(torch.uint8)).view(torch.bool)


def reduced(mask: Tensor, dims: Sequence[int]) -> Tensor:
    """``mask.any(dims, keepdim=True)`` of a mask in its smallest shape: dimensions of size 1 need no reduction."""
    asked = [dim for dim in dims if not is_one(mask.shape[dim])]
    if not asked:
        return mask
    if can_read(mask) and mask.numel():  # a fortieth of the time of torch.any
        return mask.view(torch.uint8).amax(asked, keepdim=True).view(torch.bool)
    return mask.any(asked, keepdim=True)


def any_of(mask: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
    """``mask.any(dims, keepdim)``, or of no dimensions; a repeating mask is read and kept in its smallest shape."""
    # graphs must not depend on sizes
    if dims and mode() not in TRACED and 0 not in mask.stride() and mask.numel():
        if mask.numel() < SHORT or not can_read(mask):
            return mask.any(tuple(dims), keepdim)
        return mask.view(torch.uint8).amax(tuple(dims), keepdim).view(torch.bool)
    few = smallest(mask)
    dims = [dim % mask.ndim for dim in dims] if mask.ndim else ()
    found = reduced(few, dims)
    # without access to memory, writes to aliases would go unnoticed
    if found is few and dims and mode() != "eager":
        found = few.clone()
    if few is not mask:
        found = found.expand([1 if d in dims else size for d, size in enumerate(mask.shape)])
    return found if keepdim or not dims else found.squeeze(tuple(dims))


def is_complete(mask: Tensor) -> bool:
    """Return whether a mask can be read and has only specified entries."""
    if not can_read(mask):
        return False
    few = smallest(mask)
    return not few.numel() or bool(few.view(torch.uint8).amin().item())
