"""What lies under a mask is often harmless, and one look is cheaper than replacing it.

A result that is not specified has the gradient 0, exactly; so an operand under the mask can disturb others only as a
partner of that 0, where 0 * inf is NaN. If a look shows that the numbers are finite (and of a size at which derivatives
are finite, too), nothing needs to be replaced. Looking reads the numbers once; replacing them reads and writes them,
and the gradient again. Where no look is possible (in a graph, under a transform, on another device), they are replaced.
"""

from __future__ import annotations

import cmath

import torch
from torch import Tensor

from maskgrad.kernels.smallest import all_of
from maskgrad.patterns.eager import can_read_values
from maskgrad.semantics.entries import HALVES

#: The squares of numbers add up to less than this: none is above 1e9, so that its fourth power is finite.
MODERATE = 1e18


def is_complete(mask: Tensor) -> bool:
    """Whether a look at a mask is possible, and shows that every entry is specified."""
    return can_read_values(mask) and all_of(mask)


def is_finite(values: Tensor) -> bool:
    """Whether a look is possible, and shows that no number is infinite or NaN; a sum that overflows shows nothing."""
    return can_read_values(values) and adds_up_to_finite(values)


def adds_up_to_finite(values: Tensor) -> bool:
    """:func:`is_finite` for numbers that may be looked at."""
    total = values.detach().sum(dtype=torch.float32 if values.dtype in HALVES else None)
    return bool(cmath.isfinite(total.item()))


def is_moderate(*tensors: Tensor) -> bool:
    """Whether a look is possible, costs no copy, and shows that no number is above 1e9."""
    if not can_read_values(*tensors):
        return False
    for values in tensors:
        if values.dtype not in (torch.float32, torch.float64) or not values.is_contiguous():
            return False
        flat = values.detach().view(-1)
        if not flat.dot(flat).item() < MODERATE:
            return False
    return True
