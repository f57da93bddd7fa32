"""Times, by a clock that only moves when a contender says how long it took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.case import OURS, Case, Comparison, Implementation, LeftOutError, WrongResultError
from benchmarks.timing import TimingConfig, measure

PACE = TimingConfig(fewest=3, most=9, seconds=1.0, shortest=0.1)
THEIRS = "torch.masked"


class Contest:
    """Contenders, the right result of whom is 1, and the time."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, 0

    def takes(
        self, seconds: float, result: float = 1.0, at_first: float = 0.0
    ) -> Callable[[], Implementation]:
        """A contender that takes so long, or longer in its first four calls."""

        def call() -> torch.Tensor:
            self.calls += 1
            self.now += at_first if at_first and self.calls <= 4 else seconds
            return torch.tensor(result)

        return lambda: Implementation(call)

    def measured(
        self, contenders: dict[str, Callable[[], Implementation]], **options: Any
    ) -> tuple[Any, list[str]]:
        notices: list[str] = []

        def verify(found: torch.Tensor) -> None:
            assert found == 1

        case = Case(
            "reductions", "mean(1)", "forward", (4096, 4096), density=0.5, dtype="float32",
            prepare=lambda: Comparison(contenders, verify, bytes_moved=10**9),
        )  # fmt: skip
        rows = measure(case, PACE, (THEIRS,), notices.append, lambda: self.now, **options)
        return {row.peer: row for row in rows}, notices


def failing(error: Exception) -> Callable[[], Implementation]:
    def call() -> None:
        raise error

    return lambda: Implementation(call)


def test_medians_ratios_and_bytes() -> None:
    contest = Contest()
    rows, notices = contest.measured({OURS: contest.takes(0.2), THEIRS: contest.takes(0.5)})
    ours, theirs = rows[OURS], rows[THEIRS]
    assert [ours.median_ms, theirs.median_ms] == pytest.approx([200, 500])
    assert [ours.ratio, theirs.ratio, ours.gigabytes_per_second] == pytest.approx([1, 2.5, 5])
    assert (ours.shape, ours.entries) == ("4096x4096", 4096 * 4096)
    assert notices == []


@pytest.mark.parametrize("wrong", [OURS, THEIRS])
def test_a_wrong_result_stops_before_any_clock_starts(wrong: str) -> None:
    contest = Contest()
    contenders = {name: contest.takes(0.2, 1.0 + 0.5 * (name == wrong)) for name in (OURS, THEIRS)}
    words = r"the result of \S+ is wrong in reductions, mean\(1\), forward, 4096x4096"
    with pytest.raises(WrongResultError, match=words):
        contest.measured(contenders)
    assert contest.now <= 0.4 + 1e-9


@pytest.mark.parametrize("error", [RuntimeError("not for halves\nand more"), LeftOutError("not installed")])
def test_a_peer_that_cannot_do_it_is_left_out_and_named_but_not_maskgrad(error: Exception) -> None:
    contest = Contest()
    rows, (notice,) = contest.measured({OURS: contest.takes(0.2), THEIRS: failing(error)})
    assert list(rows) == [OURS]
    assert "without torch.masked: " in notice
    assert str(error).splitlines()[0] in notice
    assert "and more" not in notice
    with pytest.raises(WrongResultError, match=r"maskgrad failed in .*ZeroDivisionError: oh"):
        contest.measured({OURS: failing(ZeroDivisionError("oh"))})


def test_warm_up_runs_do_not_count() -> None:
    contest = Contest()
    rows, _ = contest.measured({OURS: contest.takes(0.2, at_first=1.0)}, warming=3.0)
    assert rows[OURS].q3_ms == pytest.approx(200)
