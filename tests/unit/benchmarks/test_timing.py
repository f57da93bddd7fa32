from __future__ import annotations

import gc
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


def test_a_slow_contender_stays_away_when_its_share_is_used_up() -> None:
    clock = Stopwatch()
    rows, _ = timed(ours_and(ours=clock.takes(0.125), torch_masked=clock.takes(0.25)), clock)
    assert rows[OURS].repetitions == 5  # half a second each: after four rounds it is not used up yet
    assert rows["torch.masked"].repetitions == 3  # the fewest


def test_there_is_an_end_for_fast_ones_too() -> None:
    clock = Stopwatch()
    rows, _ = timed(ours_and(ours=clock.takes(0.11)), clock)
    assert rows[OURS].repetitions == 9


def test_a_fast_contender_is_called_several_times_in_each_repetition() -> None:
    clock = Stopwatch()
    rows, _ = timed(ours_and(ours=clock.takes(0.03), dense=clock.takes(0.2)), clock)
    assert (rows[OURS].calls, rows["dense"].calls) == (4, 1)
    assert rows[OURS].median_ms == pytest.approx(30)


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


def test_peers_that_nobody_asked_for_are_not_even_made() -> None:
    clock = Stopwatch()

    def never() -> Implementation:
        raise AssertionError("made")

    rows, _ = timed(ours_and(ours=clock.takes(0.2), scipy=never), clock)
    assert list(rows) == [OURS]


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


def test_a_yardstick_is_not_compared() -> None:
    clock = Stopwatch()
    dense = clock.takes(0.2, result=99.0)().call
    rows, _ = timed(ours_and(ours=clock.takes(0.2), dense=lambda: Implementation(dense, read=None)), clock)
    assert "dense" in rows


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


def test_a_case_that_has_no_meaning_here() -> None:
    with pytest.raises(LeftOutError, match="no such optimizer"):
        timed(ours_and(ours=failing(LeftOutError("no such optimizer"))), Stopwatch())


def test_a_case_that_cannot_be_prepared() -> None:
    broken = case({})
    object.__setattr__(broken, "prepare", lambda: 1 / 0)
    with pytest.raises(WrongResultError, match="cannot be prepared: ZeroDivisionError"):
        measure(broken, PACE, [])


def test_garbage_collection_goes_on_afterwards() -> None:
    clock, seen = Stopwatch(), []

    def call() -> torch.Tensor:
        seen.append(gc.isenabled())
        clock.now += 0.5
        return torch.tensor(1.0)

    timed(ours_and(ours=lambda: Implementation(call)), clock)
    assert not any(seen[1:])  # the first looks at the result
    assert gc.isenabled()


def test_what_runs_to_warm_up_does_not_count() -> None:
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
