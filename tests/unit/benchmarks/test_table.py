from __future__ import annotations

from dataclasses import replace

from benchmarks.goals import Goal
from benchmarks.table import family_table, goals_table, provenance_note
from tests.unit.benchmarks.test_results import ROW

OURS = replace(ROW, note="")
THEIRS = replace(OURS, peer="torch.masked", ratio=25.0, median_ms=75.0)
ELSEWHERE = replace(THEIRS, operation="mean(0)", ratio=12.5)
GOAL = Goal("reductions", "mean(*", "torch.masked", ">=", 20)


def test_a_line_for_each_goal_with_the_worst_case() -> None:
    assert goals_table([OURS, THEIRS], [GOAL]).splitlines()[2:] == [
        "| reductions: mean(1), forward | at least 20 times as fast as torch.masked | 25 | ✓ |"
    ]
    (line,) = goals_table([THEIRS, ELSEWHERE], [GOAL]).splitlines()[2:]
    assert line.startswith("| reductions: mean(1), mean(0), forward |")
    assert line.endswith("| 12.5 (worst of 2: mean(0), forward) | ✗ |")


def test_a_line_for_each_case_with_a_column_for_each_peer() -> None:
    product = replace(OURS, operation="a * a", density=None)
    lines = family_table([THEIRS, OURS, product, replace(product, peer="dense", ratio=0.5)]).splitlines()
    assert lines[0].endswith("| maskgrad (ms) | torch.masked | dense |")
    assert lines[2] == "| mean(1) | forward | 4096x4096 | 50% | float32 | 3.25 (3 to 3.5) | 25 |  |"
    assert lines[3] == r"| a \* a | forward | 4096x4096 |  | float32 | 3.25 (3 to 3.5) |  | 0.5 |"


def test_where_the_numbers_come_from() -> None:
    facts = {
        "date": "2026-11-20 08:58",
        "threads": "2",
        "cores": "2",
        "cpu": "Abacus",
        "torch": "2.13.0",
        "python": "3.11.7",
        "commit": "abc1234",
        "load": "0.10",
    }
    quiet = replace(OURS, provenance=tuple(facts.items()))
    note = provenance_note([quiet])
    assert "2 threads on 2 cores of Abacus" in note
    assert "commit abc1234" in note
    assert "busy" not in note
    busy = replace(OURS, provenance=tuple((facts | {"load": "1.90"}).items()))
    assert "busy with other work (load 1.90)" in provenance_note([busy])
    assert "Combined from 2 runs" in provenance_note([quiet, busy])
    assert provenance_note([]) == "Nothing was measured."
