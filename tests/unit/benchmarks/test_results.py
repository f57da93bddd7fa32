from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.results import Row, read_rows, with_provenance, write_rows

ROW = Row(
    family="reductions",
    operation="mean(1)",
    work="forward",
    shape="4096x4096",
    entries=4096 * 4096,
    density=0.5,
    dtype="float32",
    note='a comma, a "quote"',
    peer="maskgrad",
    repetitions=15,
    calls=2,
    median_ms=3.25,
    q1_ms=3.0,
    q3_ms=3.5,
    ratio=1.0,
    bytes=83886080,
)
OTHER = replace(ROW, density=None, bytes=None, peer="dense", ratio=0.5, goal="at most 3", met=False)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows = with_provenance([ROW, OTHER, replace(ROW, met=True)], {"cpu": "abacus, wooden", "load": ""})
    write_rows(tmp_path / "reductions.csv", rows)
    assert read_rows(tmp_path / "reductions.csv") == rows
    assert dict(read_rows(tmp_path / "reductions.csv")[0].provenance) == {"cpu": "abacus, wooden", "load": ""}
    assert [path.name for path in tmp_path.iterdir()] == ["reductions.csv"]


@pytest.mark.parametrize(
    ("text", "words"), [("fast", "expected a number"), ("nan", "expected a finite number")]
)
def test_a_damaged_number_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.csv"
    write_rows(path, [ROW])
    path.write_text(path.read_text().replace("3.25", text))
    with pytest.raises(ValueError, match=rf"line 2, column median_ms: {words}, found '{text}'"):
        read_rows(path)
