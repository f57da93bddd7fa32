"""Patches of images as columns and back (``F.unfold``, ``F.fold``): the linear parts of a convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from maskgrad.semantics.entries import Entries, safe
from maskgrad.semantics.facts import record
from maskgrad.semantics.nonfinite_products import NONE_AT_ALL
from maskgrad.semantics.signatures import named

if TYPE_CHECKING:
    from torch import Tensor


def unfold(input: Entries, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Entries:
    """The patches around each position, as columns; the zeros of the padding are specified."""
    geometry = (kernel_size, dilation, padding, stride)
    missing = F.unfold(input.mask.logical_not(), *geometry)
    return Entries(F.unfold(input.values, *geometry), missing.logical_not())


def fold(
    input: Entries, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Entries:
    """The sum of the specified entries that overlap at each position; a gap between patches is a created zero."""
    geometry = (output_size, kernel_size, dilation, padding, stride)

    def count(mask: Tensor) -> Tensor:
        return F.fold(mask.float(), *geometry)

    values, some = F.fold(safe(input), *geometry), count(input.mask)
    every = count(torch.ones_like(input.mask))
    return Entries(values, (some > NONE_AT_ALL) | (every < NONE_AT_ALL))


OPERATIONS = (
    record(
        "nn.functional.unfold",
        "convolutions",
        named(unfold),
        "moves with the values; zero padding is specified",
        "moves back with the values",
        functions=(F.unfold, torch._C._nn.im2col),
    ),
    record(
        "nn.functional.fold",
        "convolutions",
        named(fold),
        "specified where at least one entry that is added is, and in gaps",
        "the incoming gradient at each specified entry",
        functions=(F.fold, torch._C._nn.col2im),
    ),
)
