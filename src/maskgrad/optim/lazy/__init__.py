"""Lazy rows: closed forms of many steps with gradient zero.

A step with gradient zero applies the same map to the parameter and state of every entry. Two
families of maps can be composed ahead of time:

===============  ===============================================================  ===============================
``linear.py``    parameter and buffer by a 2x2 matrix, other states by a factor   SGD, ASGD, Lion; without weight
                                                                                  decay Adagrad, RMSprop, Adadelta
``moments.py``   a decaying first moment over a root, weight decay decoupled      Adam, AdamW, NAdam, RAdam, AMSGrad
===============  ===============================================================  ===============================

A *table* has one column for each step since which a row may be pending: column s holds the composition of
all steps after the first s. Recording a step takes time proportional to the columns that still change (16,384 values
at most, see ``rows.py``), not to the parameter; updating a row takes one lookup, for any number of missed steps.

Everything else is *replayed*, step by step, by the rule itself (``history.py``): a coupled weight decay under a square,
mostly. Before a step of another kind all rows are updated.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["ClosedForm", "ClosedFormTable", "grown", "per_row"]


class ClosedForm(abc.ABC):
    """One step with gradient zero, as a map of parameter and states."""

    def changes_nothing(self) -> bool:
        """Return whether it is the identity and need not be recorded."""
        return False

    @abc.abstractmethod
    def new_table(self, number_of_states: int, precision: float) -> ClosedFormTable:
        """Return an empty table for steps of this kind; ``precision`` is the relative rounding error of the entries."""


class ClosedFormTable(abc.ABC):
    """Compositions of such steps: column s holds all that were appended after the first s."""

    def __init__(self) -> None:
        self.steps = 0

    @abc.abstractmethod
    def fits(self, step: ClosedForm | None) -> bool:
        """Return whether ``step`` can be composed with the recorded ones."""

    @abc.abstractmethod
    def append(self, step: ClosedForm) -> None:
        """Compose every column with ``step``, and begin a new column."""

    @abc.abstractmethod
    def apply_(self, tensors: Sequence[Tensor], since: Tensor) -> None:
        """Update rows of parameter and states (n, *row), in place, each from its column in ``since`` (n,), int64."""


def grown(columns: Any, needed: int) -> Any:
    """``columns`` with room for ``needed`` along the last axis: unchanged, or a copy of at least twice the size."""
    if columns.shape[-1] >= needed:
        return columns
    larger = np.zeros((*columns.shape[:-1], max(needed, 2 * columns.shape[-1])), columns.dtype)
    larger[..., : columns.shape[-1]] = columns
    return larger


def per_row(values: Any, like: Tensor) -> Tensor:
    """One value per row, with dtype and device of ``like`` (n, *row), shaped to broadcast with it."""
    return torch.from_numpy(values).to(like.device, like.dtype).view(-1, *(1 for _ in like.shape[1:]))
