"""What is measured, one file for each family of operations; this is the list of them."""

from __future__ import annotations

from benchmarks.families import (
    batched,
    coalescing,
    compiled,
    denominators,
    doctor,
    elementwise,
    filling,
    losses,
    models,
    normalization,
    per_sample,
    ragged,
    reductions,
    small,
    softmax,
    steps,
    storage,
    updates,
)
from benchmarks.plan import Family

__all__ = ["FAMILIES"]

FAMILIES: tuple[Family, ...] = (
    reductions.FAMILY,
    softmax.FAMILY,
    normalization.FAMILY,
    losses.FAMILY,
    elementwise.FAMILY,
    filling.FAMILY,
    compiled.FAMILY,
    small.FAMILY,
    coalescing.FAMILY,
    storage.FAMILY,
    updates.FAMILY,
    steps.FAMILY,
    models.FAMILY,
    ragged.FAMILY,
    batched.FAMILY,
    per_sample.FAMILY,
    denominators.FAMILY,
    doctor.FAMILY,
)
