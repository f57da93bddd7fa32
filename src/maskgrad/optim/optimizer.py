"""What all optimizers share: read and check every gradient first, then update; all or nothing."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.attached import attach_gradient, current_gradient
from maskgrad.optim.gradients import Gradient, read_gradient

__all__ = ["MaskedOptimizer", "step_count"]


class MaskedOptimizer(torch.optim.Optimizer, abc.ABC):
    """A ``torch.optim.Optimizer`` that takes dense, sparse and masked gradients, in turns if need be.

    A subclass checks its numbers (``_numbers``), says what state a parameter has (``_check_state``), and
    performs one update (``_update``). Everything else is here or in PyTorch.
    """

    @abc.abstractmethod
    def _numbers(self, group: dict[str, Any]) -> Any:
        """The group's hyperparameters as plain numbers, checked."""

    @abc.abstractmethod
    def _check_state(self, param: Tensor, name: str) -> None:
        """ValueError if a loaded state does not fit ``param``; changes nothing."""

    @abc.abstractmethod
    def _update(self, param: Tensor, gradient: Gradient, numbers: Any) -> None:
        """Create missing state and update ``param``."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with their own hyperparameters, as in PyTorch.

        A leaf MaskedTensor of any layout may stand for a parameter: its values are what is trained, so that the
        cost of a step follows the number of specified entries.

        Raises:
            TypeError: a parameter is itself sparse, or not of a floating-point or complex dtype.
            ValueError: a hyperparameter is out of its range, or what PyTorch refuses.
        """
        param_group["params"] = _with_values(param_group["params"])
        super().add_param_group(param_group)
        try:
            self._numbers(param_group)
            for name, param in _named(param_group, len(self.param_groups) - 1):
                _check_parameter(param, name)
        except BaseException:
            self.param_groups.pop()
            raise

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore; options that a state of ``torch.optim`` does not know get their defaults."""
        super().__setstate__(state)
        for group in self.param_groups:
            for name, default in SHARED_OPTIONS.items():
                group.setdefault(name, default)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients, attached ones included (those are removed whatever ``set_to_none`` says)."""
        super().zero_grad(set_to_none)
        for group in self.param_groups:
            for param in group["params"]:
                attach_gradient(param, None)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, on the entries its gradient specifies.

        Every gradient, state and hyperparameter is checked before anything is written: when a step refuses,
        parameters and state are as they were.

        Args:
            closure: reevaluates the model and returns the loss; called once, with gradients enabled.

        Returns:
            What ``closure`` returned, or None.

        Raises:
            TypeError: a gradient of an unknown layout or of a dtype that its parameter cannot take.
            ValueError: a gradient of another shape or device, a parameter with two gradients, a
                hyperparameter out of its range.
            IndexError: a gradient's index outside its parameter.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        ready: list[tuple[Tensor, Gradient, Any]] = []
        for position, group in enumerate(self.param_groups):
            numbers = self._numbers(group)
            for name, param in _named(group, position):
                grad = current_gradient(param, name)
                if grad is not None:
                    ready.append((param, read_gradient(param, grad, name), numbers))
                    self._check_state(param, name)
        for param, gradient, numbers in ready:
            self._update(param, gradient, numbers)
        return loss

    def _check_tensor(self, param: Tensor, key: str, name: str) -> None:
        """ValueError if the state ``key`` is there and has another shape or device than ``param``."""
        value = self.state[param].get(key) if param in self.state else None
        if value is not None and (value.shape != param.shape or value.device != param.device):
            raise ValueError(
                f"state {key!r} of {name} has shape {tuple(value.shape)} on {value.device}, but the parameter has "
                f"shape {tuple(param.shape)} on {param.device}; load a state that belongs to this model"
            )


SHARED_OPTIONS: dict[str, Any] = {
    "unspecified": "skip",
    "state": "full",
    "maximize": False,
    "foreach": None,
    "differentiable": False,
    "fused": None,
}


def _named(group: dict[str, Any], position: int) -> Iterator[tuple[str, Tensor]]:
    """Each parameter of a group, with the words by which an error message calls it."""
    names: Sequence[str] | None = group.get("param_names")
    for number, param in enumerate(group["params"]):
        yield (f"parameter {names[number]!r}" if names else f"parameter {number} of group {position}"), param


def _with_values(params: Any) -> Any:
    """Parameters, in which MaskedTensors (perhaps with a name) are replaced by the values that they train."""
    if isinstance(params, Tensor):
        return params
    if isinstance(params, MaskedTensor):
        return [params._values]
    if isinstance(params, set):  # PyTorch refuses it: the order of a set is nobody's promise
        return params

    def values(param: Any) -> Any:
        if isinstance(param, MaskedTensor):
            return param._values
        if isinstance(param, tuple) and len(param) == 2 and isinstance(param[1], MaskedTensor):
            return param[0], param[1]._values
        return param

    return [values(param) for param in params]


def _check_parameter(param: Tensor, name: str) -> None:
    if param.layout is not torch.strided:
        raise TypeError(
            f"{name} is itself a sparse tensor ({param.layout}); mg.optim updates dense parameters and MaskedTensors "
            "of any layout: x = mg.from_sparse(parameter.detach()).requires_grad_(), and mg.optim gets x. Or keep a "
            "dense parameter and use mg.masked(parameter, mask).to_sparse() in the model"
        )
    if not (param.is_floating_point() or param.is_complex()):
        raise TypeError(
            f"{name} has dtype {param.dtype}; only floating-point and complex parameters can be trained"
        )


def step_count(steps: float) -> Tensor:
    """A number of steps as ``torch.optim`` keeps it."""
    return torch.tensor(
        float(steps), dtype=torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32
    )
