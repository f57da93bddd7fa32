"""Loops of nobody's library with what mg.integrations has for those of accelerate, Fabric and ignite.

The libraries themselves are in tests/ecosystem.
"""

from __future__ import annotations

import math
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.integrations.mean_losses import mean_and_number


class Accelerator:
    """What is asked of accelerate's: a step is complete after two micro-batches."""

    def __init__(self, kind: str = "NO", each: bool = False) -> None:
        self.distributed_type, self.scaler = kind, None
        self.gradient_state = types.SimpleNamespace(plugin_kwargs={"sync_each_batch": each})
        self.calls = 0

    @property
    def sync_gradients(self) -> bool:
        self.calls += 1
        return self.calls % 2 == 0

    def unscale_gradients(self) -> None:
        pass


def parts(w: Tensor) -> list[Any]:
    """Losses 1, 3 and nothing; then 8 and garbage under a mask."""
    return [
        w * mg.masked(torch.tensor([1.0, 3.0, math.nan]), torch.tensor([True, True, False])),
        w * mg.masked(torch.tensor([math.inf, 8.0]), torch.tensor([False, True])),
    ]


def test_an_accelerator_says_when_a_step_is_complete() -> None:
    w = nn.Parameter(torch.ones(()))
    module = nn.ParameterList([w])
    accumulator = mg.integrations.AcceleratorAccumulator(Accelerator(), module)
    first, last = (accumulator.backward(losses) for losses in parts(w))
    assert first is None
    assert (last.item(), w.grad.item()) == (4.0, 4.0)  # type: ignore[union-attr]
    assert accumulator.clip_grad_norm_(1.0).item() == 4.0
    assert w.grad.item() == pytest.approx(1.0)  # type: ignore[union-attr]
    with pytest.raises(
        ValueError, match=r"DEEPSPEED reduces and divides gradients by itself; supported are NO"
    ):
        mg.integrations.AcceleratorAccumulator(Accelerator("DEEPSPEED"), module)
    with pytest.raises(ValueError, match=r"sync_each_batch=True.*remove it"):
        mg.integrations.AcceleratorAccumulator(Accelerator(each=True), module)


def test_fabric_hands_its_module_and_scaler_over() -> None:
    w = nn.Parameter(torch.ones(()))
    strategy = types.SimpleNamespace(precision=types.SimpleNamespace())
    wrapped = nn.ParameterList([w])
    accumulator = mg.integrations.FabricAccumulator(types.SimpleNamespace(strategy=strategy), wrapped)
    for losses in parts(w):
        accumulator.backward(losses)
    assert (accumulator.finish().item(), w.grad.item()) == (4.0, 4.0)  # type: ignore[union-attr]


def test_an_engine_of_ignite_steps_when_an_epoch_ends() -> None:
    module = nn.Module()
    w = module.w = nn.Parameter(torch.ones(()))
    module.forward = lambda x: w * x
    step = mg.integrations.ignite_training_step(
        module,
        torch.optim.SGD([w], lr=0.25),
        mg.masked,
        gradient_accumulation_steps=2,
    )
    state = types.SimpleNamespace(iteration=0, epoch_length=3)
    known = torch.tensor([True, False])
    shown = []
    for x in (1.0, 3.0, 4.0):
        state.iteration += 1
        shown.append(step(types.SimpleNamespace(state=state), (torch.tensor([x, 77.0]), known)))
    # (1 + 3) / 2 / 4, then 4 / 4 of what is left
    assert w.item() == -0.5
    assert shown == [1.0, 3.0, 2.0]
    with pytest.raises(ValueError, match="must be 1 or more, found 0"):
        mg.integrations.ignite_training_step(module, None, None, gradient_accumulation_steps=0)  # type: ignore[arg-type]


def test_means_and_numbers() -> None:
    assert mean_and_number(parts(torch.ones(()))[0]) == (torch.tensor(2.0), 2)
    assert mean_and_number(torch.tensor([2.0, 4.0]), 2) == (torch.tensor(3.0), 2)
    assert mean_and_number(torch.tensor(3.0), 5) == (torch.tensor(3.0), 5)
    assert mean_and_number(torch.tensor(math.nan), 0) == (torch.tensor(0.0), 0)
    nothing = mg.masked(torch.full((2,), math.nan), torch.zeros(2, dtype=torch.bool))
    assert mean_and_number(nothing) == (torch.tensor(0.0), 0)
    with pytest.raises(TypeError, match="must be a tensor or a MaskedTensor, found float"):
        mean_and_number(1.0)
    with pytest.raises(ValueError, match=r"how many entries count is unknown: pass count="):
        mean_and_number(torch.ones(2))
