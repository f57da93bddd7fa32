"""A loop with the accumulator for accelerate, whose own tests are in tests/ecosystem."""

from __future__ import annotations

import math
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg


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
