"""Losses: over the positions where all operands are specified; the mean divides by their number.

Without any position the mean is NaN, the sum 0, and the gradient zero.
"""

from maskgrad.semantics.losses import cross_entropy, ctc, margins, regression

FAMILIES = (regression, cross_entropy, margins, ctc)
OPERATIONS = tuple(operation for family in FAMILIES for operation in family.OPERATIONS)
