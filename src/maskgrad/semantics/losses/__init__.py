"""Losses: over the positions where all operands are specified; the mean divides by their number.

If no position is left the loss is NaN, a sum 0, and its gradient zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskgrad.semantics.losses import (
    binary,
    cross_entropy,
    ctc,
    linear_cross_entropy,
    margins,
    ranking,
    regression,
)

if TYPE_CHECKING:
    from maskgrad.semantics.facts import Operation

__all__ = ["OPERATIONS"]

OPERATIONS: tuple[Operation, ...] = (
    *regression.OPERATIONS,
    *binary.OPERATIONS,
    *cross_entropy.OPERATIONS,
    *linear_cross_entropy.OPERATIONS,
    *margins.OPERATIONS,
    *ranking.OPERATIONS,
    *ctc.OPERATIONS,
)
