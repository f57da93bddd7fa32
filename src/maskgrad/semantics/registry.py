"""Every record, in one explicit list: a family that is not named here does not exist."""

from __future__ import annotations

from maskgrad.semantics import (
    contractions,
    conversion,
    creation,
    diagonals,
    elementwise,
    equality,
    extrema,
    gathering,
    grids,
    indexing,
    joins,
    losses,
    norms,
    padding,
    reductions,
    scattering,
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
    *creation.OPERATIONS,
    *diagonals.OPERATIONS,
    *equality.OPERATIONS,
    *gathering.OPERATIONS,
    *grids.OPERATIONS,
    *padding.OPERATIONS,
    *scattering.OPERATIONS,
    *losses.OPERATIONS,
    *conversion.OPERATIONS,
    *conversion.METADATA,
)
