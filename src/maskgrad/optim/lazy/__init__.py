"""Rows that are behind: closed forms of many steps with gradient zero, without taking them one by one.

A step with gradient zero maps parameter and state of an entry to new ones, by the same map for every entry. Two
families of maps can be composed ahead of time:

===============  ===============================================================  ===============================
``linear.py``    parameter and buffer by a 2x2 matrix, other states by a factor   SGD, ASGD, Lion; without weight
                                                                                  decay Adagrad, RMSprop, Adadelta
``moments.py``   a decaying first moment over a root, weight decay decoupled      Adam, AdamW, NAdam, RAdam, AMSGrad
===============  ===============================================================  ===============================

A *table* has one column for each step after which a row may have been left behind: column s holds the composition of
all steps since the first s. Recording a step costs work in proportion to the columns that still change (16,384 numbers
at most, see ``rows.py``), never to the parameter; bringing a row up to date costs one lookup, however far it is behind.

Everything else is *replayed*, step by step, by the rule itself (``history.py``): a coupled weight decay under a square,
mostly.
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

    @abc.abstractmethod
    def changes_nothing(self) -> bool:
        """Whether it is the identity, and need not be recorded."""

    @abc.abstractmethod
    def new_table(self, number_of_states: int, precision: float) -> ClosedFormTable:
        """An empty table for steps of this kind; ``precision`` is the relative rounding error of the entries."""


class ClosedFormTable(abc.ABC):
    """Compositions of such steps: column s holds all that were appended after the first s."""

    def __init__(self) -> None:
        self.steps = 0

    @abc.abstractmethod
    def fits(self, step: ClosedForm) -> bool:
        """Whether ``step`` can be composed with those that are here."""

    @abc.abstractmethod
    def append(self, step: ClosedForm) -> None:
        """Compose every column with ``step``, and begin a new column."""

    @abc.abstractmethod
    def apply_(self, tensors: Sequence[Tensor], since: Tensor) -> None:
        """Bring rows up to date.

        Args:
            tensors: parameter and states (n, *row), of the computing dtype; changed in place.
            since: column of each row (n,), int64, on the device of ``tensors``.
        """


def grown(columns: Any, needed: int) -> Any:
    """``columns`` with room for ``needed`` along the last axis: itself, or a copy of at least twice the size."""
    if columns.shape[-1] >= needed:
        return columns
    larger = np.zeros((*columns.shape[:-1], max(needed, 2 * columns.shape[-1])), columns.dtype)
    larger[..., : columns.shape[-1]] = columns
    return larger


def per_row(values: Any, like: Tensor) -> Tensor:
    """One number for each row, of the dtype and on the device of ``like`` (n, *row), shaped to go with it."""
    return torch.from_numpy(values).to(like.device, like.dtype).view(-1, *(1 for _ in like.shape[1:]))
