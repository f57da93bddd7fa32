from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.case import OURS, Case, Implementation, LeftOutError
from benchmarks.plan import Family, Plan
from benchmarks.results import Row, read_rows
from benchmarks.runner import run
from benchmarks.timing import TimingConfig
from tests.unit.benchmarks.stopwatch import Stopwatch, case, ours_and

PLAN = Plan(pace=TimingConfig(fewest=2, most=2, seconds=0.0, shortest=0.0))


class Told:
    def __init__(self) -> None:
        self.notices: list[str] = []
        self.families: list[tuple[str, int]] = []
        self.cases = 0
        self.rows: list[int] = []

    def family(self, family: Family, cases: int) -> None:
        self.families.append((family.name, cases))

    def case(self, case: Case) -> None:
        self.cases += 1

    def measured(self, rows: Sequence[Row]) -> None:
        self.rows.append(len(rows))

    def notice(self, message: str) -> None:
        self.notices.append(message)


def family(name: str, cases: list[Case], forgotten: list[str] | None = None) -> Family:
    def forget() -> None:
        if forgotten is not None:
            forgotten.append(name)

    return Family(name, "about", "size", lambda _: cases, sizes=(8,), quick_size=8, forget=forget)


def raising(error: BaseException) -> Callable[[], Implementation]:
    def call() -> Any:
        raise error

    return lambda: Implementation(call)


def test_rows_are_written_with_goals_and_provenance(tmp_path: Path) -> None:
    clock, told = Stopwatch(), Told()
    first = case(ours_and(ours=clock.takes(0.1), torch_masked=clock.takes(4.0)), note="")
    outcome = run(PLAN, [family("reductions", [first])], tmp_path, told, clock)
    assert outcome.failures == []
    assert not outcome.interrupted
    rows = read_rows(tmp_path / "reductions.csv")
    assert [row.peer for row in rows] == [OURS, "torch.masked"]
    assert rows[1].met is True
    assert dict(rows[0].provenance) == outcome.facts
    assert (told.families, told.cases, told.rows) == ([("reductions", 1)], 1, [2])


def test_a_wrong_result_drops_its_family_and_keeps_the_others(tmp_path: Path) -> None:
    clock, forgotten = Stopwatch(), []
    good = case(ours_and(ours=clock.takes(0.1)))
    bad = case(ours_and(ours=clock.takes(0.1), dense=clock.takes(0.1, result=2.0)), operation="sum(1)")
    families = [family("a", [good, bad, good], forgotten), family("b", [good], forgotten)]
    told = Told()
    outcome = run(PLAN, families, tmp_path, told, clock)
    (failure,) = outcome.failures
    assert "the result of dense is wrong in reductions, sum(1)" in failure
    assert [path.name for path in tmp_path.iterdir()] == ["b.csv"]
    assert told.cases == 3
    assert forgotten == ["a", "b"]


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    clock = Stopwatch()
    good = case(ours_and(ours=clock.takes(0.1)))
    stopped = case(ours_and(ours=raising(KeyboardInterrupt())))
    families = [family("a", [good, stopped, good]), family("b", [good])]
    outcome = run(PLAN, families, tmp_path, Told(), clock)
    assert outcome.interrupted
    assert len(read_rows(tmp_path / "a.csv")) == 1
    assert not (tmp_path / "b.csv").exists()


def test_a_case_that_is_left_out_is_named(tmp_path: Path) -> None:
    told = Told()
    absent = case(ours_and(ours=raising(LeftOutError("no RMSprop here"))))
    outcome = run(PLAN, [family("a", [absent])], tmp_path, told, Stopwatch())
    assert outcome.failures == []
    assert told.rows == [0]
    assert "left out: no RMSprop here" in told.notices[-1]
    assert list(tmp_path.iterdir()) == []


def test_an_absent_peer_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "benchmarks.runner.why_absent", lambda peer: "not installed" if peer == "scipy" else ""
    )
    clock, told = Stopwatch(), Told()
    good = case(ours_and(ours=clock.takes(0.1), scipy=raising(AssertionError("asked"))))
    run(PLAN, [family("a", [good, good])], tmp_path, told, clock)
    assert told.notices == ["without scipy: not installed"]
