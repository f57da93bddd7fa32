"""What a closed form offers: steps that can be composed, and a table of compositions."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["IdleStep", "IdleTable"]


class IdleStep(abc.ABC):
    """One step with gradient zero, as a map of parameter and states."""

    @abc.abstractmethod
    def changes_nothing(self) -> bool:
        """Whether it is the identity, and need not be recorded."""

    @abc.abstractmethod
    def new_table(self, number_of_states: int, precision: float) -> IdleTable:
        """An empty table for steps of this kind; ``precision`` is the relative rounding error of the entries."""


class IdleTable(abc.ABC):
    """Compositions of idle steps: column s holds all that were appended after the first s."""

    def __init__(self) -> None:
        self.steps = 0

    @abc.abstractmethod
    def fits(self, step: IdleStep) -> bool:
        """Whether ``step`` can be composed with those that are here."""

    @abc.abstractmethod
    def append(self, step: IdleStep) -> None:
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


def spread(values: Any, like: Tensor) -> Tensor:
    """One number for each row, of the dtype and on the device of ``like`` (n, *row), shaped to go with it."""
    return torch.from_numpy(values).to(like.device, like.dtype).view(-1, *(1 for _ in like.shape[1:]))
