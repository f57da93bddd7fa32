from __future__ import annotations

from dataclasses import replace

from benchmarks.goals import Goal
from benchmarks.headlines import headlines
from tests.unit.benchmarks.test_results import ROW


def test_the_worst_case_is_told_as_it_is() -> None:
    goal = Goal("reductions", "mean(1)", "torch.masked", ">=", 1, density=None)
    won, lost = (replace(ROW, note="", peer="torch.masked", ratio=ratio) for ratio in (25.0, 0.5))
    assert "| a task | it | 25 times as fast | ✓ |" in headlines([won], [(goal, "a task", "it")])
    assert "| a task | it | 2 times as slow | ✗ |" in headlines([won, lost], [(goal, "a task", "it")])
    assert "a task" not in headlines([], [(goal, "a task", "it")])
