"""What an optimizer declares: its hyperparameters as checked numbers, the state it keeps, the update they make."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from maskgrad.optim.engine import Update

__all__ = ["Numbers", "State", "shared_numbers"]


@dataclass(frozen=True, slots=True)
class State:
    """A state tensor of the parameter's shape, or, if ``statistic`` and rows are asked for, one value per row."""

    name: str
    statistic: bool = False
    """A second moment or the like, of which one value per row can do."""
    initial: float | None = 0.0
    """The value it starts with everywhere; None: it starts as a copy of the parameter."""

    def shape(self, param: Tensor, row: bool) -> torch.Size:
        """The shape of this state; of a parameter with one dimension or none, each entry is a row."""
        if row and self.statistic and param.dim() > 1:
            return torch.Size((param.shape[0], *(1 for _ in param.shape[1:])))
        return param.shape

    def create(self, param: Tensor, row: bool) -> Tensor:
        """A new state; the two parts of a complex number start alike."""
        start = param.detach()
        if self.initial is None:
            return start.clone()
        if self.shape(param, row) != param.shape:
            start = start.new_empty(self.shape(param, row))
        value = complex(self.initial, self.initial) if param.is_complex() else self.initial
        return torch.full_like(start, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers(abc.ABC):
    """The hyperparameters of one optimizer as plain numbers, checked.

    A subclass lists its own as fields.
    """

    maximize: bool = False
    row: bool = False
    """One accumulator per row."""
    on_device: bool = False
    """The step count lives on the parameter's device, as PyTorch has it with ``capturable`` or ``fused``."""

    zeros: bool = False
    """An entry without a gradient has gradient zero."""

    counts_steps: ClassVar[bool] = True
    """Whether there is a state ``"step"``."""

    @abc.abstractmethod
    def states(self) -> tuple[State, ...]:
        """The state tensors, in the order in which the rule takes them."""

    def scalars(self) -> dict[str, float]:
        """States that are one number for the whole parameter, and the values with which they start."""
        return {}

    @abc.abstractmethod
    def update(self, step: float, **scalars: Tensor) -> Update:
        """The update of step number ``step``, counted from 1 (0 if steps are not counted)."""


def shared_numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of :class:`Numbers` itself, from a parameter group."""
    return {
        "maximize": bool(group["maximize"]),
        "row": group["state"] == "row",
        "on_device": bool(group.get("capturable") or group.get("fused")),
        "zeros": group["unspecified"] == "zero",
    }
