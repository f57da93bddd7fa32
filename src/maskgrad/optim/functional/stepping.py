"""What all update functions share: check everything, then step once, without an optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from maskgrad.gradients.attached import AnyGradient
from maskgrad.optim.engine import apply_update
from maskgrad.optim.gradients import read_gradient
from maskgrad.optim.hyperparameters import finite
from maskgrad.optim.numbers import State
from maskgrad.optim.optimizer import MaskedOptimizer

__all__ = ["require_like", "step_"]


def step_(
    kind: type[MaskedOptimizer],
    group: dict[str, Any],
    param: Tensor,
    grad: AnyGradient,
    given: Mapping[str, Tensor | None],
    *,
    step: float | Tensor = 1,
    beyond: Sequence[Tensor] = (),
) -> Tensor:
    """One step of the optimizer ``kind`` with the hyperparameters of ``group`` and the states ``given``.

    Raises:
        TypeError: unknown layout or unfit dtype.
        ValueError: shapes or devices differ, a number is out of its range, or a state is missing.
        IndexError: an index outside ``param``.
    """
    numbers = kind._numbers({"state": "full", "unspecified": "skip", **group})
    if any(_is_per_row(param, given.get(declared.name), declared) for declared in numbers.states()):
        numbers = replace(numbers, row=True)
    count = finite("step", step)
    if count < 1:
        raise ValueError(f"step must be at least 1, the number of the first step, got {step}")
    gradient = read_gradient(param, grad, "param")
    states = [_checked(param, given.get(declared.name), declared) for declared in numbers.states()]
    scalars = {name: _one_number(name, given[name]) for name in numbers.scalars()}
    update = numbers.update(count, **scalars)
    apply_update(update, param, gradient, [*states, *beyond])
    for name, value in update.scalars.items():
        scalars[name].copy_(value)
    return param


def require_like(param: Tensor, other: Tensor, name: str) -> None:
    """ValueError unless ``other`` is strided and has the shape and device of ``param``."""
    if other.shape != param.shape or other.device != param.device or other.layout is not param.layout:
        raise ValueError(
            f"{name} must be a strided tensor like param, {tuple(param.shape)} on {param.device}; got {other.layout} "
            f"of shape {tuple(other.shape)} on {other.device}"
        )


def _checked(param: Tensor, state: Tensor | None, declared: State) -> Tensor:
    name = "state_sum" if declared.name == "sum" else declared.name
    if state is None:
        raise ValueError(f"a step with these options needs {name}, e.g. torch.zeros_like(param)")
    if not _is_per_row(param, state, declared):
        require_like(param, state, name)
    elif state.device != param.device:
        raise ValueError(f"{name} is on {state.device}, but param is on {param.device}; move one with .to()")
    return state.detach()


def _is_per_row(param: Tensor, state: Tensor | None, declared: State) -> bool:
    """Whether ``state`` has one value for each row, which is another shape than the parameter's."""
    one_per_row = declared.shape(param, row=True)
    return state is not None and state.shape == one_per_row != param.shape


def _one_number(name: str, state: Tensor | None) -> Tensor:
    if state is None or state.numel() != 1:
        found = "None" if state is None else f"a tensor of shape {tuple(state.shape)}"
        raise ValueError(f"{name} must be a tensor with one element, got {found}")
    return state.detach()
