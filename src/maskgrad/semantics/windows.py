"""The windows of a pooling operation: how many positions each has, and how its masks are pooled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def as_tuple(value: Any, rank: int) -> tuple[int, ...]:
    """All of torch's ways of saying one number for each spatial dimension."""
    if isinstance(value, (tuple, list)):
        return tuple(value) * rank if len(value) == 1 else tuple(value)
    return (value,) * rank


def shared(mask: Tensor, rank: int) -> Tensor:
    """The mask once, if batch or channels share one (an expanded view): pooling it costs that much less."""
    for dim in range(mask.ndim - rank):
        if mask.shape[dim] > 1 and mask.stride(dim) == 0:
            mask = mask.narrow(dim, 0, 1)
    return mask


def sliding_sizes(
    lengths: Sequence[int],
    results: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """How many positions each window has, with padding (less what ceil_mode lets hang over), and on the data alone."""
    both, inside = [], []
    for length, result, width, step, pad in zip(lengths, results, kernel, stride, padding, strict=True):
        start = torch.arange(result, device=device) * step - pad
        end = (start + width).clamp(max=length + pad)
        both.append(end - start)
        inside.append(end.clamp(max=length) - start.clamp(min=0))
    return _outer(both), _outer(inside)


def adaptive_sizes(lengths: Sequence[int], results: Sequence[int], device: torch.device) -> Tensor:
    """How many positions each window of an adaptive pooling has."""
    sizes = []
    for length, result in zip(lengths, results, strict=True):
        place = torch.arange(result, device=device)
        sizes.append(-((-(place + 1) * length) // result) - place * length // result)
    return _outer(sizes)


def _outer(sizes: list[Tensor]) -> Tensor:
    """One size for each dimension, multiplied: (*results)."""
    rank = len(sizes)
    shaped = [size.reshape([-1 if d == i else 1 for d in range(rank)]) for i, size in enumerate(sizes)]
    return math.prod(shaped[1:], start=shaped[0])
