from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.case import OURS, Implementation, LeftOutError, WrongResultError
from benchmarks.timing import TimingConfig, measure
from tests.unit.benchmarks.stopwatch import Stopwatch, case, ours_and

PACE = TimingConfig(fewest=3, most=9, seconds=1.0, shortest=0.1)


def timed(contenders: Any, clock: Stopwatch, wanted: Any = ("torch.masked", "dense"), **facts: Any) -> Any:
    notices: list[str] = []
    rows = measure(case(contenders, **facts), PACE, wanted, notices.append, clock)
    return {row.peer: row for row in rows}, notices


def test_medians_ratios_and_bytes() -> None:
    clock = Stopwatch()
    rows, notices = timed(
        ours_and(ours=clock.takes(0.2), torch_masked=clock.takes(0.5)), clock, bytes_moved=10**9
    )
    assert rows[OURS].median_ms == pytest.approx(200)
    assert rows["torch.masked"].median_ms == pytest.approx(500)
    assert rows["torch.masked"].ratio == pytest.approx(2.5)
    assert rows[OURS].ratio == 1
    assert rows[OURS].gigabytes_per_second == pytest.approx(5.0)
    assert (rows[OURS].shape, rows[OURS].entries) == ("4096x4096", 4096 * 4096)
    assert notices == []


def test_contenders_take_turns_at_beginning() -> None:
    order: list[str] = []

    def noting(name: str) -> Any:
        def call() -> torch.Tensor:
            order.append(name)
            clock.now += 0.2
            return torch.tensor(1.0)

        return lambda: Implementation(call)

    clock = Stopwatch()
    timed(ours_and(ours=noting("ours"), dense=noting("dense")), clock)
    checked = 2
    turns = order[checked::2]
    assert order[checked + 1 :: 2] == turns  # each turn is a call that warms up, and one that counts
    assert turns == ["ours", "dense", "dense", "ours", "ours", "dense"]


@pytest.mark.parametrize("name", ["ours", "torch_masked"])
def test_a_wrong_result_stops_before_any_clock_starts(name: str) -> None:
    clock = Stopwatch()
    contenders = {"ours": clock.takes(0.2), "torch_masked": clock.takes(0.2)}
    contenders[name] = clock.takes(0.2, result=1.5)
    with pytest.raises(
        WrongResultError, match=r"the result of \S+ is wrong in reductions, mean\(1\), forward, 4096x4096"
    ):
        timed(ours_and(**contenders), clock)
    assert clock.now <= 0.4 + 1e-9


def test_results_that_the_reference_lets_pass_must_still_agree() -> None:
    clock = Stopwatch()
    contest = case(ours_and(ours=clock.takes(0.2, 1.0), torch_masked=clock.takes(0.2, 1.00000001)))
    loose = contest.prepare()
    object.__setattr__(loose, "verify", lambda _: None)
    object.__setattr__(
        loose, "contenders", ours_and(ours=clock.takes(0.2, 1.0), torch_masked=clock.takes(0.2, 2.0))
    )
    object.__setattr__(contest, "prepare", lambda: loose)
    with pytest.raises(WrongResultError, match=r"torch\.masked"):
        measure(contest, PACE, ["torch.masked"], clock=clock)


def failing(error: Exception) -> Any:
    def call() -> None:
        raise error

    return lambda: Implementation(call)


@pytest.mark.parametrize("error", [RuntimeError("not for halves\nand more"), LeftOutError("not installed")])
def test_a_peer_that_cannot_do_it_is_left_out_and_named(error: Exception) -> None:
    clock = Stopwatch()
    rows, notices = timed(ours_and(ours=clock.takes(0.2), torch_masked=failing(error)), clock)
    assert list(rows) == [OURS]
    (notice,) = notices
    assert "without torch.masked: " in notice
    assert str(error).partition("\n")[0] in notice
    assert "and more" not in notice


def test_an_error_of_maskgrad_is_not_passed_over() -> None:
    with pytest.raises(WrongResultError, match=r"maskgrad failed in .*ZeroDivisionError: oh"):
        timed(ours_and(ours=failing(ZeroDivisionError("oh"))), Stopwatch())


def test_warm_up_runs_do_not_count() -> None:
    clock, calls = Stopwatch(), []

    def slow_at_first() -> Implementation:
        def call() -> torch.Tensor:
            calls.append(1)
            clock.now += 1.0 if len(calls) <= 4 else 0.2
            return torch.tensor(1.0)

        return Implementation(call)

    (row,) = measure(case({OURS: slow_at_first}), PACE, (), print, clock, warming=3.0)
    assert row.median_ms == pytest.approx(200)
    assert row.q3_ms == pytest.approx(200)
