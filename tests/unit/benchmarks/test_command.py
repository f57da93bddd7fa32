from __future__ import annotations

import json
import subprocess
import sys
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
    assert "forward, 40x40, 50%, float32" in said
    assert "filled(0)" in said
    assert "Report: " in said


def test_peers_can_be_chosen(tmp_path: Path) -> None:
    bench("--quick", "--families", "filling", "--sizes", "9", "--peers", "where", "--out", str(tmp_path))
    assert {row.peer for row in read_rows(tmp_path / "filling.csv")} == {"maskgrad", "where"}


def test_the_list_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = bench("--list")
    for word in ("reductions", "fbgemm", "side of a square matrix", "65,536", "float16"):
        assert word in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--families", "reduction"], ["--families", "'reduction' is not among them", "reductions, softmax"]),
        (["--families", " , "], ["--families", "nothing was named"]),
        (["--peers", "numpy"], ["--peers", "'numpy'", "torch.masked"]),
        (["--dtypes", "float8"], ["--dtypes", "'float8'", "float32"]),
        (["--families", "updates", "--dtypes", "float64"], ["--dtypes", "--list"]),
        (["--sizes", "12,big"], ["--sizes", "whole numbers", "'12,big'"]),
        (["--sizes", "1"], ["--sizes", "at least 2"]),
        (["--densities", "50"], ["--densities", "at most 1, got 50"]),
        (["--threads", "0"], ["--threads"]),
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


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    assert "is a file" in bench("--quick", "--out", str(tmp_path / "file"), code=2)
    assert (tmp_path / "file").read_text() == "precious"


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, done = runner.measure, []

    def one_and_then_none(*arguments: object) -> object:
        if done:
            raise KeyboardInterrupt
        done.append(1)
        return measure(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "measure", one_and_then_none)
    said = bench("--quick", "--families", "filling,softmax", "--sizes", "9", "--out", str(tmp_path), code=130)
    assert "Interrupted" in said
    (kept,) = tmp_path.glob("*.csv")
    assert len({row.case for row in read_rows(kept)}) == 1


def test_a_wrong_result_is_told_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(filling._FILLED, where=lambda x, mask: torch.where(mask, x, 0.0) + 0.01)
    monkeypatch.setattr(filling, "_FILLED", wrong)
    said = bench("--quick", "--families", "filling", "--sizes", "9", "--out", str(tmp_path), code=1)
    assert "STOPPED: the result of where is wrong in filling, filled(0)" in said
    assert list(tmp_path.iterdir()) == []


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text("apples,1\n")
    said = bench("--quick", "--families", "filling", "--sizes", "9", "--out", str(tmp_path))
    assert "No pictures" in said
    assert "prices.csv" in said
    assert (tmp_path / "prices.csv").read_text() == "apples,1\n"


def test_help_waits_for_nothing_heavy() -> None:
    code = (
        "import json, sys; from typer.testing import CliRunner; from benchmarks.__main__ import app;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0;"
        "print(json.dumps([m for m in ('matplotlib', 'scipy', 'numba', 'fbgemm_gpu') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
