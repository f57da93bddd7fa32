"""What ``make sweep`` measures is right first, and is written down."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

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
    assert all(float(row["ratio"]) > 0 for row in rows)
    assert rows[0]["torch"]
    assert (tmp_path / "sweep.png").stat().st_size > 1000


def test_a_wrong_line_is_not_measured() -> None:
    sample = next(sweep.samples((4, 6)))
    with pytest.raises(AssertionError, match="wrong"):
        sweep.check("wrong", lambda x: x.sum(1) * 2, lambda v, m: torch.where(m, v, 0.0).sum(1), sample)


def test_the_pages_show_what_was_kept() -> None:
    with (sweep.KEPT / "sweep.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for page in sweep.PAGES:
        text = page.read_text(encoding="utf-8")
        assert sweep.BEGIN in text
        assert sweep.with_table(page, rows) == text
        assert all((sweep.KEPT / name).is_file() for name in ("sweep.png", "sweep-dark.png"))
