"""All optimizers."""

from __future__ import annotations

import inspect

import pytest
import torch

import maskgrad as mg
from maskgrad.optim.optimizer import MaskedOptimizer
from tests.unit.optim.optimizers import CASES, NAMES
from tests.unit.optim.suite import OptimizerSuite


class TestOptimizers(OptimizerSuite):
    cases = CASES


def test_every_optimizer_is_declared() -> None:
    classes = {
        name for name, kind in vars(mg.optim).items() if inspect.isclass(kind) and hasattr(kind, "step")
    }
    assert classes - {MaskedOptimizer.__name__} == set(NAMES)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad"])
def test_a_learning_rate_that_is_a_tensor_may_change_in_place(name: str) -> None:
    rate, (p, q) = torch.tensor(0.5), (torch.nn.Parameter(torch.ones(4, 2)) for _ in range(2))
    ours, theirs = getattr(mg.optim, name)([p], lr=rate), getattr(mg.optim, name)([q], lr=0.5)
    for lr in (0.5, 0.125, 0.25):
        rate.fill_(lr)
        theirs.param_groups[0]["lr"] = lr
        for t in (p, q):
            t.grad = torch.sparse_coo_tensor([[0, 2]], torch.ones(2, 2), (4, 2))
        ours.step()
        theirs.step()
        torch.testing.assert_close(p, q)
