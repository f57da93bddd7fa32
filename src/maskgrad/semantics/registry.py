"""Every record, in one explicit list: a family that is not named here does not exist."""

from __future__ import annotations

from maskgrad.semantics import (
    contractions,
    conversion,
    elementwise,
    extrema,
    indexing,
    joins,
    losses,
    norms,
    reductions,
    views,
)
from maskgrad.semantics.facts import Operation

__all__ = ["OPERATIONS"]

OPERATIONS: tuple[Operation, ...] = (
    *elementwise.OPERATIONS,
    *reductions.OPERATIONS,
    *extrema.OPERATIONS,
    *norms.OPERATIONS,
    *contractions.OPERATIONS,
    *views.OPERATIONS,
    *indexing.OPERATIONS,
    *joins.OPERATIONS,
    *losses.OPERATIONS,
    *conversion.OPERATIONS,
    *conversion.METADATA,
)
