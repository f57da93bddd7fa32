from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import runner
from benchmarks.__main__ import app
from benchmarks.families import filling
from benchmarks.results import read_rows


def bench(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return done.output


def test_a_quick_run_writes_tables_and_pictures(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    said = bench(
        "--quick", "--families", "filling", "--sizes", "40", "--threads", "1", "--out", str(tmp_path / "new")
    )
    rows = read_rows(tmp_path / "new" / "filling.csv")
    assert {row.peer for row in rows} == {"maskgrad", "where", "dense", "memory-copy"}
    assert {dict(row.provenance)["threads"] for row in rows} == {"1"}
    assert torch.get_num_threads() == threads
    assert (tmp_path / "new" / "forward.png").is_file()
    assert all(words in said for words in ("forward, 40x40, 50%, float32", "filled(0)", "Report: "))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--families", "reduction"], ["--families", "'reduction' is not among them", "reductions, softmax"]),
        (["--peers", "numpy"], ["--peers", "'numpy'", "torch.masked"]),
        (["--sizes", "1"], ["--sizes", "at least 2"]),
        (["--densities", "50"], ["--densities", "at most 1, got 50"]),
    ],
)
def test_a_mistake_is_named_before_anything_runs(
    arguments: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "measure", None)
    said = " ".join(bench(*arguments, code=2).split())
    for word in words:
        assert word in said
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_result_is_told_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(filling._FILLED, where=lambda x, mask: torch.where(mask, x, 0.0) + 0.01)
    monkeypatch.setattr(filling, "_FILLED", wrong)
    said = bench("--quick", "--families", "filling", "--sizes", "9", "--out", str(tmp_path), code=1)
    assert "STOPPED: the result of where is wrong in filling, filled(0)" in said
    assert list(tmp_path.iterdir()) == []
