"""The suite of all optimizers: one that is declared for it inherits these tests.

    class TestOurs(OptimizerSuite):
        cases = cases_of([Declared(Ours, torch.optim.Theirs, ("exp_avg",), {"": {}, "decay": {...}})])

A test asks for a ``case``, the options of an optimizer; for a ``plain`` one, the usual options; or for a ``row_case``,
if the optimizer can have states per row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from tests.unit.optim.optimizers import Case
from tests.unit.optim.suite.behind import Behind
from tests.unit.optim.suite.lives import Lives
from tests.unit.optim.suite.per_row import PerRow
from tests.unit.optim.suite.refusals import Refusals
from tests.unit.optim.suite.states import States
from tests.unit.optim.suite.steps import Steps

__all__ = ["OptimizerSuite"]


class OptimizerSuite(Lives, Steps, States, PerRow, Behind, Refusals):
    cases: ClassVar[Mapping[str, Case]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        every = list(self.cases.values())
        some = {
            "case": every,
            "plain": [case for case in every if not case.variant],
            "row_case": [case for case in every if len(case.row_states) > 1],
        }
        for name, chosen in some.items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, chosen, ids=str)
