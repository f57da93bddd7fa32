"""Random programs of operations, views and writes; ``make fuzz`` runs a million."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from maskgrad.patterns.boolean import BooleanPattern
from tests.effort import examples
from tests.random_programs.comparisons import Failure
from tests.random_programs.machine import STEPS, Programs

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of casts


def run_programs(number: int, **options: Any) -> None:
    usual = settings(
        max_examples=number, stateful_step_count=STEPS, suppress_health_check=list(HealthCheck), **options
    )
    run_state_machine_as_test(Programs, settings=usual)


def test_programs() -> None:
    run_programs(examples(3000))


def _lost_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BooleanPattern, "of_view", lambda self, mask: BooleanPattern(mask.clone()))


def _garbage_in_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskgrad.semantics.scans.fill", lambda operand, mask, value: operand.values)


@pytest.mark.large
@pytest.mark.parametrize("plant", [_lost_views, _garbage_in_sums])
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch)
    with pytest.raises(Failure):
        run_programs(5000, derandomize=True, database=None, phases=[Phase.generate])
