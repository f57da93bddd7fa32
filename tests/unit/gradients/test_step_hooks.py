"""Observers learn of every step, and of the gradients before they are used, with a closure or without."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import maskgrad as mg
from maskgrad.gradients import step_hooks
from maskgrad.gradients.step_hooks import StepObserver, observe_steps


class Notes(StepObserver):
    """Writes down what it is told about one optimizer, and what the parameter and its gradient were then."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.events: list[tuple[Any, ...]] = []

    def _note(self, name: str, optimizer: Optimizer) -> None:
        assert not torch.is_grad_enabled()
        if optimizer is self.optimizer:
            p = optimizer.param_groups[0]["params"][0]
            self.events.append((name, p.item(), None if p.grad is None else p.grad.item()))

    def before_step(self, optimizer: Optimizer) -> None:
        self._note("before step", optimizer)

    def gradients_ready(self, optimizer: Optimizer) -> None:
        self._note("ready", optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        self._note("after step", optimizer)


@pytest.mark.parametrize("library", [mg.optim, torch.optim], ids=["mg", "torch"])
@pytest.mark.parametrize("keyword", [True, False])
def test_the_order_of_events(library: Any, keyword: bool) -> None:
    p = nn.Parameter(torch.tensor(3.0))
    optimizer, other = library.SGD([p], lr=0.5), library.SGD([nn.Parameter(torch.tensor(0.0))], lr=0.5)
    notes = Notes(optimizer)
    observe_steps(notes)

    def closure() -> str:
        assert torch.is_grad_enabled()
        (p * 2).backward()
        return "loss"

    p.grad = torch.tensor(1.0)
    optimizer.step()
    other.step()
    assert notes.events == [("before step", 3.0, 1.0), ("ready", 3.0, 1.0), ("after step", 2.5, 1.0)]
    notes.events.clear()
    p.grad = None
    assert (optimizer.step(closure=closure) if keyword else optimizer.step(closure)) == "loss"
    assert notes.events == [
        ("before step", 2.5, None),
        ("ready", 2.5, 2.0),
        ("after step", 1.5, 2.0),
    ]


def test_a_closure_that_is_called_often_is_told_of_each_time() -> None:
    p = nn.Parameter(torch.tensor(3.0))
    optimizer = torch.optim.LBFGS([p], lr=0.5, max_iter=3)
    notes = Notes(optimizer)
    observe_steps(notes)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (p - 1) ** 2
        loss.backward()
        return loss

    optimizer.step(closure)
    names = [name for name, *_ in notes.events]
    assert names == ["before step", *["ready"] * 3, "after step"]


def test_observers_are_held_weakly() -> None:
    gc.collect()  # observers that other tests have left behind
    before = len(step_hooks._observers)
    notes = Notes(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    observe_steps(notes)
    observe_steps(notes)
    assert len(step_hooks._observers) == before + 1
    del notes
    gc.collect()
    assert len(step_hooks._observers) == before
