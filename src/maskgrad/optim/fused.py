"""Which kernel does a rule's work on the rows of a table, in one pass: merge, scale, decay, update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from maskgrad import kernels

__all__ = ["Fused", "fused_adagrad", "fused_adam", "fused_rmsprop", "fused_sgd"]

States = Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Fused:
    """A kernel with its numbers; called with a parameter, indices, values and states, as the engine has them.

    Attributes:
        kernel: its name.
        numbers: its keyword arguments.
        arranged: the states in the order in which the kernel takes them, None for each that is not used.
    """

    kernel: str
    numbers: Mapping[str, Any]
    arranged: Callable[[States], list[Tensor | None]]

    def __call__(self, param: Tensor, indices: Tensor, values: Tensor, *states: Tensor) -> None:
        """One table."""
        getattr(kernels, self.kernel)(param, *self.arranged(states), indices, values, **self.numbers)


def fused_sgd(numbers: Mapping[str, Any]) -> Fused:
    """SGD, with a buffer if there is one."""
    return Fused("sgd_rows_", _signed(numbers), _padded_to_one)


def fused_adagrad(numbers: Mapping[str, Any], row: bool) -> Fused:
    """Adagrad, with one state for each entry or, ``row``, for each row."""
    return Fused("rowwise_adagrad_rows_" if row else "adagrad_rows_", _signed(numbers), list)


def fused_adam(numbers: Mapping[str, Any]) -> Fused:
    """Adam and AdamW, with AMSGrad's third state if there is one."""
    return Fused("adam_rows_", _signed(numbers), _padded_to_three)


def fused_rmsprop(numbers: Mapping[str, Any], centered: bool) -> Fused:
    """RMSprop; the states are the mean square, with ``centered`` the mean, and with momentum a buffer."""
    return Fused("rmsprop_rows_", _signed(numbers), _padded_to_three if centered else _without_mean)


def _padded_to_one(states: States) -> list[Tensor | None]:
    return [*states] or [None]


def _padded_to_three(states: States) -> list[Tensor | None]:
    return [*states, *[None] * (3 - len(states))]


def _without_mean(states: States) -> list[Tensor | None]:
    return [states[0], None, states[1] if len(states) > 1 else None]


def _signed(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Kernels know no ``maximize``, but a factor of the gradient."""
    numbers = dict(numbers)
    return numbers | {"factor": -1.0 if numbers.pop("maximize") else 1.0}
