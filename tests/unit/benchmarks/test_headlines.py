from __future__ import annotations

from dataclasses import replace

from benchmarks import record
from benchmarks.goals import Goal
from benchmarks.headlines import HEADLINES, headlines
from benchmarks.results import read_folder
from tests.unit.benchmarks.test_results import ROW


def test_the_worst_case_is_told_as_it_is() -> None:
    goal = Goal("reductions", "mean(1)", "torch.masked", ">=", 1, density=None)
    won, lost = (replace(ROW, note="", peer="torch.masked", ratio=ratio) for ratio in (25.0, 0.5))
    assert "| a task | it | 25 times as fast | ✓ |" in headlines([won], [(goal, "a task", "it")])
    assert "| a task | it | 2 times as slow | ✗ |" in headlines([won, lost], [(goal, "a task", "it")])
    assert "a task" not in headlines([], [(goal, "a task", "it")])


def test_all_five_were_measured_and_two_are_lost() -> None:
    lines = headlines(read_folder(record.RESULTS)).splitlines()[2:]
    assert len(lines) == len(HEADLINES) == 5
    assert sum(line.endswith("✗ |") for line in lines) == 2
