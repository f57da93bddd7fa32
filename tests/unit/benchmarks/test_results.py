from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.results import Row, read_folder, read_rows, with_provenance, write_rows

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


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    write_rows(tmp_path / "b.csv", [OTHER])
    write_rows(tmp_path / "a.csv", [ROW])
    assert [row.peer for row in read_folder(tmp_path)] == ["maskgrad", "dense"]
    assert read_folder(tmp_path / "b.csv") == []


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"no file of `make bench`: the column 'family' is missing"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"), [("fast", "expected a number"), ("nan", "expected a finite number")]
)
def test_a_damaged_number_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.csv"
    write_rows(path, [ROW])
    path.write_text(path.read_text().replace("3.25", text))
    with pytest.raises(ValueError, match=rf"line 2, column median_ms: {words}, found '{text}'"):
        read_rows(path)


def test_what_belongs_to_one_case() -> None:
    assert ROW.case == replace(ROW, peer="dense", ratio=2.0).case
    assert ROW.case != replace(ROW, dtype="float64").case
