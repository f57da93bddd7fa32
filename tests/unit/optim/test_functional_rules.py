"""Every update function does what the optimizer of its name does, step by step, and refuses what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskgrad import attach_gradient, optim
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.optimizer import MaskedOptimizer
from tests.unit.optim.kinds import every_kind
from tests.unit.optim.optimizers import NAMES, WITH_ROW_STATE, accepts, every_optimizer

# In the order in which a function takes them; a function has no word for options that its states tell.
STATES = {
    "SGD": ("momentum_buffer",), "Adagrad": ("sum",), "Adam": ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    "RMSprop": ("square_avg", "momentum_buffer", "grad_avg"), "Adadelta": ("square_avg", "acc_delta"),
    "Adamax": ("exp_avg", "exp_inf"), "NAdam": ("exp_avg", "exp_avg_sq", "mu_product"),
    "RAdam": ("exp_avg", "exp_avg_sq"), "Rprop": ("prev", "step_size"), "ASGD": ("ax", "eta", "mu"),
    "Lion": ("exp_avg",), "LAMB": ("exp_avg", "exp_avg_sq"),
}  # fmt: skip
START = {"mu_product": 1.0, "mu": 1.0}


def function_of(ours: type[MaskedOptimizer]) -> tuple[Any, tuple[str, ...]]:
    name = "Adam" if ours.__name__ == "AdamW" else ours.__name__
    return getattr(optim.functional, f"{name.lower()}_"), STATES[name]


def follow(
    ours: type[MaskedOptimizer], options: dict[str, Any], gradients: list[Any], start: Tensor, state: str
) -> None:
    """Both ways in lockstep; the function starts with copies of the states that the optimizer starts with."""
    function, names = function_of(ours)
    p, param = nn.Parameter(start.clone()), start.clone()
    optimizer = ours([p], state=state, **options)
    numbers = {key: value for key, value in options.items() if accepts(function, key)}
    if ours.__name__ == "AdamW":
        numbers = {"weight_decay": 0.01, **numbers, "decoupled_weight_decay": True}
    attach_gradient(p, torch.zeros_like(start).to_sparse())  # no entry: makes the state, and counts a step
    optimizer.step()
    states = [optimizer.state.get(p, {}).get(name) for name in names]
    states = [None if s is None else s.clone() for s in states]
    for step, gradient in enumerate(gradients, 2):
        attach_gradient(p, gradient)
        optimizer.step()
        extra = {"step": step} if accepts(function, "step") else {}
        assert function(param, gradient, *states, **numbers, **extra) is param
        torch.testing.assert_close(param, p.detach(), rtol=0, atol=0)
        for name, value in zip(names, states, strict=True):
            if value is not None:
                torch.testing.assert_close(value, optimizer.state[p][name], rtol=0, atol=0)


@every_kind
@every_optimizer
def test_functions_are_steps_of_the_optimizer(
    kind: Callable[[Tensor], Tensor | MaskedTensor],
    ours: type[MaskedOptimizer],
    theirs: type[torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    if options.get("dampening"):
        return  # the marker of started buffers: test_functional
    gradients = [
        kind(torch.where(torch.rand(2, 2, 1) < 0.6, torch.randn(2, 2, 2), 0).view(2, 4)) for _ in range(4)
    ]
    follow(ours, options, gradients, torch.randn(2, 4), "full")
    if ours.__name__ in WITH_ROW_STATE and not options.get("centered"):
        follow(ours, options, gradients, torch.randn(2, 4), "row")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "AdamW"])
def test_states_that_do_not_fit_are_refused(name: str) -> None:
    function, names = function_of(getattr(optim, name))
    good = [
        torch.full((), START.get(n, 0.1)) if n in ("mu_product", "eta", "mu") else torch.zeros(3, 2)
        for n in names
    ]
    options: dict[str, Any] = {"step": 1} if accepts(function, "step") else {}
    options |= {"momentum": 0.9} if accepts(function, "momentum") else {}
    for spoiled in range(len(good)):
        param = torch.ones(3, 2)
        states = list(good)
        states[spoiled] = torch.zeros(4, 2)
        with pytest.raises(
            ValueError, match=r"must be a (strided tensor like param, \(3, 2\)|tensor with one element)"
        ):
            function(param, torch.ones(3, 2), *states, **options)
        assert param.tolist() == [[1.0, 1.0]] * 3
        assert all(not state.any() for state in good if state.dim())
    with pytest.raises(ValueError, match=r"gradient of param has shape \(2,\)"):
        function(torch.ones(3, 2), torch.ones(2), *good, **options)
    if "step" in options:
        with pytest.raises(ValueError, match=r"step must be at least 1 \(the first step\), got 0"):
            function(torch.ones(3, 2), torch.ones(3, 2), *good, **{**options, "step": 0})


def test_options_without_their_state_are_refused() -> None:
    with pytest.raises(ValueError, match="a step with these options needs momentum_buffer"):
        optim.functional.rmsprop_(torch.ones(2), torch.ones(2), torch.zeros(2), momentum=0.9)
    with pytest.raises(ValueError, match="state='row' is not available with centered=True"):
        optim.functional.rmsprop_(
            torch.ones(2, 2), torch.ones(2, 2), torch.zeros(2, 1), grad_avg=torch.zeros(2, 2)
        )
