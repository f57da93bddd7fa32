"""Gating: one half of a dimension gates the other; an entry is specified where it and its gate are."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import record
from maskgrad.semantics.signatures import named


def glu(input: Entries, dim: int = -1) -> Entries:
    """``a * sigmoid(b)`` for the halves a and b of ``dim``."""
    values, mask = input
    half = values.shape[as_dim(dim, values.ndim)] // 2 if values.ndim else 0
    if values.ndim == 0 or values.shape[dim] != 2 * half:
        return Entries(F.glu(values, dim), mask)  # torch says what is wrong
    first, second = mask.split(half, dim) if half else (mask, mask)
    both = first & second
    return Entries(F.glu(torch.where(torch.cat((both, both), dim), values, 1), dim), both)


OPERATIONS = (
    record(
        "nn.functional.glu",
        "gating",
        named(glu),
        "intersection of the two halves' patterns",
        "torch's, where an entry and its gate are specified",
    ),
)
