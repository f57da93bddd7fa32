"""What a step refers to is found, and put back."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.doctor.state import objects_with_state

LAYER = nn.Linear(2, 1)


class _Trainer:
    def __init__(self) -> None:
        self.layers = [nn.Linear(2, 1)]
        self.schedule = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(self.layers[0].parameters()), 2)

    def step(self, x: Tensor) -> Tensor:
        return self.loss(self.layers[0](x) + LAYER(x))

    def loss(self, x: Tensor) -> Tensor:
        return x.mean() + OFFSET


OFFSET = nn.Parameter(torch.zeros(()))


def _scaled(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).mean()  # type: ignore[no-any-return]


def test_closures_arguments_attributes_and_globals_are_followed_and_nothing_else() -> None:
    trainer, other = _Trainer(), nn.Linear(2, 1)
    (layer,) = trainer.layers
    cases: list[tuple[Any, set[int], int]] = [
        (trainer.step, {id(p) for p in (*layer.parameters(), *LAYER.parameters(), OFFSET)}, 1),
        (
            lambda x: trainer.step(x).mean(),
            {id(p) for p in (*layer.parameters(), *LAYER.parameters(), OFFSET)},
            1,
        ),
        (functools.partial(_scaled, other), {id(p) for p in other.parameters()}, 0),
        (other, {id(p) for p in other.parameters()}, 0),
    ]
    for step, expected, count in cases:
        leaves, counters, _ = objects_with_state(step)
        assert {id(leaf) for leaf in leaves} == expected
        assert len(counters) == count


def test_tensors_that_autograd_forbids_are_no_leaves() -> None:
    """Some raise when they are asked."""
    base = torch.ones(2, requires_grad=True) * 1
    first, second = base.unbind()
    base.mul_(2)
    with pytest.raises(RuntimeError, match="Unbind"):
        _ = second.is_leaf
    assert objects_with_state([first, second]) == ([], [], [])


@pytest.mark.parametrize("given", [False, True])
def test_modules_that_a_step_switches_before_their_first_call_are_put_back(given: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 1))
    before = torch.ones(3, 4)
    model[0].weight.grad = before

    def step(x: Tensor) -> Tensor:
        model.eval()
        return model(x).square().mean()

    report = mg.doctor.examine(step, torch.randn(5, 4), model=model if given else None, experiments=["order"])
    assert report.ok
    assert model[0].weight.grad is before
    assert (before == 1).all()
    assert all(module.training for module in model.modules())
