"""Observers called around every optimizer's step, including PyTorch's own optimizers.

PyTorch's global hooks run before a step and after it. An optimizer that is given a closure computes its gradients
inside the step, so the closure is wrapped: observers are called once gradients exist, in either case.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

__all__ = ["StepObserver", "name_of", "named", "observe_steps", "parameters_of"]


class StepObserver:
    """Called around every step while it is alive, without recording gradients."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Called when a step begins, before any change."""

    def gradients_ready(self, optimizer: Optimizer) -> None:
        """Called when the parameters have the gradients that the optimizer will use."""
        raise NotImplementedError

    def after_step(self, optimizer: Optimizer) -> None:
        """Called after the step, unless it raised."""


_observers: weakref.WeakSet[StepObserver] = weakref.WeakSet()
_hooked: list[Any] = []


def observe_steps(observer: StepObserver) -> None:
    """Call ``observer`` around all steps from now on, while it is referenced."""
    _observers.add(observer)
    if not _hooked:  # PyTorch's hooks are global: set for the first observer
        _hooked.append(register_optimizer_step_pre_hook(_before))
        _hooked.append(register_optimizer_step_post_hook(_after))


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """The parameters of all groups."""
    for group in optimizer.param_groups:
        yield from group["params"]


def name_of(group: dict[str, Any], position: int, number: int) -> str:
    """Name of a parameter in messages: its path in the module, from ``named_parameters()``, or its position."""
    names: Sequence[str] | None = group.get("param_names")
    return f"parameter {names[number]!r}" if names else f"parameter {number} of group {position}"


def named(group: dict[str, Any], position: int) -> Iterator[tuple[str, Tensor]]:
    """Each parameter of a group, with its name."""
    for number, param in enumerate(group["params"]):
        yield name_of(group, position, number), param


@torch.no_grad()
def _before(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    present = list(_observers)
    for observer in present:
        observer.before_step(optimizer)
    # `args` begins with the optimizer itself.
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not callable(closure):
        for observer in present:
            observer.gradients_ready(optimizer)
        return None
    wrapped = _observed(closure, optimizer, present)
    if len(args) > 1:
        return (args[0], wrapped, *args[2:]), kwargs
    return args, {**kwargs, "closure": wrapped}


@torch.no_grad()
def _after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for observer in list(_observers):
        observer.after_step(optimizer)


def _observed(
    closure: Callable[[], Any], optimizer: Optimizer, present: list[StepObserver]
) -> Callable[[], Any]:
    @functools.wraps(closure)
    def evaluate() -> Any:
        loss = closure()
        with torch.no_grad():
            for observer in present:
                observer.gradients_ready(optimizer)
        return loss

    return evaluate
