"""What ``make sweep`` measures is right first, and is written down."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import sweep


def test_lines_are_checked_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SHAPES", ((4, 6), (2, 5, 3)))
    monkeypatch.setattr(sweep, "ROUNDS", 1)
    sweep.main(out=tmp_path)
    with (tmp_path / "sweep.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    passes = 2
    assert len(rows) == passes * (22 + 2 * 22)
    assert {row["shape"] for row in rows} == {"4x6", "2x5x3"}
    assert all(float(row["ratio"]) > 0 and row["torch"] for row in rows)
    assert (tmp_path / "sweep.png").stat().st_size > 1000
