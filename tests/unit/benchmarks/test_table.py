"""What the pages say of rows: goals that are met or missed, the worst case, where the numbers come from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.goals import Goal, judged
from benchmarks.headlines import headlines
from benchmarks.table import family_table, goals_table, provenance_note
from tests.unit.benchmarks.test_results import ROW

OURS = replace(ROW, note="")
THEIRS = replace(OURS, peer="torch.masked", ratio=25.0, median_ms=75.0)
ELSEWHERE = replace(THEIRS, operation="mean(0)", ratio=12.5)
GOAL = Goal("reductions", "mean(*", "torch.masked", ">=", 20)


def test_a_goal_is_met_or_missed_by_time_or_cost() -> None:
    met, missed = judged([THEIRS, replace(THEIRS, ratio=19.9)], [GOAL])
    assert (met.met, missed.met) == (True, False)
    assert met.goal == "at least 20 times as fast as torch.masked"
    cost = replace(GOAL, peer="dense", relation="<=", bound=3, quantity="cost")
    dense = replace(THEIRS, peer="dense", ratio=0.5, median_ms=1.5)
    assert cost.value(dense) == 2
    assert cost.is_met(dense)
    assert not cost.is_met(replace(dense, ratio=0.25))
    assert cost.words == "at most 3 times the time of dense"


def test_rows_that_the_goal_does_not_speak_of() -> None:
    others: list[dict[str, Any]] = [
        {"density": 0.1},
        {"density": None},
        {"dtype": "float64"},
        {"shape": "512x512"},
    ]
    others += [
        {"peer": "dense"},
        {"operation": "sum(1)"},
        {"work": "forward + backward"},
        {"family": "softmax"},
    ]
    for row in judged([replace(THEIRS, **other) for other in others], [GOAL]):
        assert (row.goal, row.met) == ("", None), row


def test_the_worst_case_is_told_as_it_is() -> None:
    assert goals_table([OURS, THEIRS], [GOAL]).splitlines()[2:] == [
        "| reductions: mean(1), forward | at least 20 times as fast as torch.masked | 25 | ✓ |"
    ]
    (line,) = goals_table([THEIRS, ELSEWHERE], [GOAL]).splitlines()[2:]
    assert line.startswith("| reductions: mean(1), mean(0), forward |")
    assert line.endswith("| 12.5 (worst of 2: mean(0), forward) | ✗ |")
    named = [(replace(GOAL, operation="mean(1)", bound=1, density=None), "a task", "it")]
    assert "| a task | it | 25 times as fast | ✓ |" in headlines([THEIRS], named)
    assert "| a task | it | 2 times as slow | ✗ |" in headlines([THEIRS, replace(THEIRS, ratio=0.5)], named)
    assert "a task" not in headlines([], named)


def test_a_line_for_each_case_with_a_column_for_each_peer() -> None:
    product = replace(OURS, operation="a * a", density=None)
    lines = family_table([THEIRS, OURS, product, replace(product, peer="dense", ratio=0.5)]).splitlines()
    assert lines[0].endswith("| maskgrad (ms) | torch.masked | dense |")
    assert lines[2] == "| mean(1) | forward | 4096x4096 | 50% | float32 | 3.25 (3 to 3.5) | 25 |  |"
    assert lines[3] == r"| a \* a | forward | 4096x4096 |  | float32 | 3.25 (3 to 3.5) |  | 0.5 |"


def test_where_the_numbers_come_from() -> None:
    facts = {"date": "2026-11-20 08:58", "threads": "2", "cores": "2", "cpu": "Abacus", "load": "0.10"}
    facts |= {"torch": "2.13.0", "python": "3.11.7", "commit": "abc1234"}
    quiet, busy = (replace(OURS, provenance=tuple((facts | load).items())) for load in ({}, {"load": "1.90"}))
    note = provenance_note([quiet])
    assert "2 threads on 2 cores of Abacus" in note
    assert "commit abc1234" in note
    assert "busy" not in note
    assert "busy with other work (load 1.90)" in provenance_note([busy])
    assert "Combined from 2 runs" in provenance_note([quiet, busy])
    assert provenance_note([]) == "Nothing was measured."
