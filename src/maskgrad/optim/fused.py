"""Which kernel does a rule's work on the rows of a table, in one pass: merge, scale, decay, update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["Fused", "fused_adagrad", "fused_adam", "fused_rmsprop", "fused_sgd"]

States = Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Fused:
    """A kernel with its numbers.

    Attributes:
        kernel: its name.
        numbers: its keyword arguments.
        arranged: the states in the order in which the kernel takes them, None for each that is not used.
    """

    kernel: str
    numbers: Mapping[str, Any]
    arranged: Callable[[States], list[Tensor | None]]


def fused_sgd(numbers: Mapping[str, Any], row: bool) -> Fused:
    """SGD, with a buffer if there is one."""
    named = _signed(numbers, "lr", "momentum", "dampening", "weight_decay", "nesterov")
    return Fused("sgd_rows_", named, lambda states: [*states] or [None])


def fused_adagrad(numbers: Mapping[str, Any], row: bool) -> Fused:
    """Adagrad, with one state for each entry or, ``row``, for each row."""
    named = _signed(numbers, "lr", "weight_decay", "eps")
    return Fused("rowwise_adagrad_rows_" if row else "adagrad_rows_", named, list)


def fused_adam(numbers: Mapping[str, Any], row: bool) -> Fused | None:
    """Adam and AdamW, with AMSGrad's third state if there is one."""
    if row:
        return None
    named = _signed(numbers, "step", "lr", "eps", "weight_decay")
    named["beta1"], named["beta2"] = numbers["betas"]
    named["decoupled"] = numbers["decoupled_weight_decay"]
    return Fused("adam_rows_", named, lambda states: [*states, *[None] * (3 - len(states))])


def fused_rmsprop(numbers: Mapping[str, Any], row: bool) -> Fused | None:
    """RMSprop; with momentum the second state is a buffer, with ``centered`` the last one the mean."""
    if row:
        return None
    named = _signed(numbers, "lr", "alpha", "eps", "weight_decay", "momentum")
    centered, buffered = numbers["centered"], bool(numbers["momentum"])

    def arranged(states: States) -> list[Tensor | None]:
        return [states[0], states[-1] if centered else None, states[1] if buffered else None]

    return Fused("rmsprop_rows_", named, arranged)


def _signed(numbers: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Kernels know no ``maximize``, but a factor of the gradient."""
    return {"factor": -1.0 if numbers["maximize"] else 1.0, **{name: numbers[name] for name in names}}
