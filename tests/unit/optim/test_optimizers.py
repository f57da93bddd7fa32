"""All optimizers."""

from __future__ import annotations

import inspect

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
