"""Losses: over the positions where all operands are specified; the mean divides by their number.

If no position is left the loss is NaN, a sum 0, and its gradient zero.
"""

from maskgrad.semantics.losses import (
    binary,
    cross_entropy,
    ctc,
    linear_cross_entropy,
    margins,
    ranking,
    regression,
)

FAMILIES = (regression, binary, cross_entropy, linear_cross_entropy, margins, ranking, ctc)
OPERATIONS = tuple(operation for family in FAMILIES for operation in family.OPERATIONS)
