"""Convolutions: torch's own function on all channels, zeros in place of what is unspecified; ones count products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry

__all__ = ["convolution", "fold"]


def convolution(
    entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Specified where a product has two specified factors, or where no window of data makes any product."""
    if entry.operation.name == "nn.functional.fold":
        return fold(entry.function, call, leaves, masks)
    safe = [torch.where(mask, leaf, 0) for leaf, mask in zip(leaves, masks, strict=True)]
    args, kwargs = call.with_tensors(safe)
    values = entry.function(*args, **kwargs)

    def count(data: Tensor, kernel: Tensor) -> Tensor:
        zeros = [torch.zeros(leaf.shape, dtype=torch.float64) for leaf in leaves[2:]]
        args, kwargs = call.with_tensors([data.double(), kernel.double(), *zeros])
        return entry.function(*args, **kwargs).round()

    every = count(*(torch.ones_like(mask) for mask in masks[:2]))
    mask = (count(*masks[:2]) > 0) | (every == 0)
    for bias in masks[2:]:
        spatial = leaves[1].ndim - 2
        mask = mask & bias.reshape(-1, *[1] * spatial)
    return values, [mask]


def fold(
    function: Callable[..., Tensor], call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The sum of what overlaps; positions between the patches are zeros of its own making."""

    def folded(x: Tensor) -> Tensor:
        args, kwargs = call.with_tensors([x])
        return function(*args, **kwargs)

    (x,), (mask,) = leaves, masks
    some, every = folded(mask.double()), folded(torch.ones_like(mask).double())
    return folded(torch.where(mask, x, 0)), [(some > 0) | (every == 0)]
