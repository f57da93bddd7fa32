"""Losses: over the positions where all operands are specified; the mean divides by their number.

If no position is left the loss is NaN, a sum 0, and its gradient zero.
"""

from maskgrad.semantics.losses import cross_entropy, ctc, linear_cross_entropy, margins, regression

FAMILIES = (regression, cross_entropy, linear_cross_entropy, margins, ctc)
OPERATIONS = tuple(operation for family in FAMILIES for operation in family.OPERATIONS)
