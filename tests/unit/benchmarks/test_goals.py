from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.goals import Goal, judged
from tests.unit.benchmarks.test_results import ROW

GOAL = Goal("reductions", "mean(*", "torch.masked", ">=", 20)
THEIRS = replace(ROW, note="", peer="torch.masked", ratio=25.0, median_ms=75.0)


def test_a_goal_that_is_met_and_one_that_is_missed() -> None:
    met, missed = judged([THEIRS, replace(THEIRS, ratio=19.9)], [GOAL])
    assert (met.met, missed.met) == (True, False)
    assert met.goal == "at least 20 times as fast as torch.masked"


@pytest.mark.parametrize(
    "other",
    [
        {"peer": "dense"},
        {"operation": "sum(1)"},
        {"density": 0.1},
        {"density": None},
        {"dtype": "float64"},
        {"shape": "512x512"},
        {"work": "forward + backward"},
        {"family": "softmax"},
    ],
)
def test_rows_that_the_goal_does_not_speak_of(other: dict[str, object]) -> None:
    (row,) = judged([replace(THEIRS, **other)], [GOAL])
    assert (row.goal, row.met) == ("", None)


def test_a_cost_is_the_time_beside_the_peer() -> None:
    goal = replace(GOAL, peer="dense", relation="<=", bound=3, quantity="cost")
    dense = replace(THEIRS, peer="dense", ratio=0.5, median_ms=1.5)
    assert goal.value(dense) == 2
    assert goal.is_met(dense)
    assert not goal.is_met(replace(dense, ratio=0.25))
    assert goal.words == "at most 3 times the time of dense"
