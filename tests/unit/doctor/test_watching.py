from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from typer.testing import CliRunner

import maskgrad as mg
from maskgrad.cli.main import app

SCRIPT = """
import sys, torch
layer = torch.nn.Linear(3, 1)
data = [{"x": torch.ones(4, 3), "mask": torch.arange(4) < n, "other": torch.ones(3) > 0} for n in (4, 2, 3, 1)]
for batch in torch.utils.data.DataLoader(data, batch_size=2):
    h = layer(batch["x"])
    if "--right" in sys.argv:
        h = h[batch["mask"]]
    if "--exit" in sys.argv:
        sys.exit("the script's last words")
    if "--fail" in sys.argv:
        raise RuntimeError("the script's own")
    if "--idle" in sys.argv:
        continue
    h.square().mean().backward()
"""


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 1, "h.square().mean().backward()"),
        (["--right"], 0, "0 findings"),
        (["--idle"], 2, "without a backward pass"),
        (["--fail"], 2, "the script's own"),
        (["--exit"], 2, "the script's last words"),
        (["--mask"], 2, "a mask of shape (2, 3) does not fit"),
    ],
)
def test_the_command(tmp_path: Path, arguments: list[str], status: int, words: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    out = [tmp_path / "report.json", tmp_path / "report.html"]
    told = ["--padding", "x=other"] if "--mask" in arguments else []
    done = CliRunner().invoke(
        app, ["doctor", "--json", str(out[0]), "--html", str(out[1]), *told, str(script), *arguments]
    )
    assert done.exit_code == status, done.output
    assert words in done.output
    assert all(path.exists() for path in out) == (not told)


def test_a_script_that_fails_says_what_it_says_without_us_and_then_what_was_seen(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        SCRIPT.replace('if "--fail" in sys.argv:', 'if batch["mask"].sum() == 4:'), encoding="utf-8"
    )
    alone, ours = (
        subprocess.run(
            [sys.executable, *command, str(script)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for command in ([], ["-m", "maskgrad.cli.main", "doctor"])
    )
    assert (alone.returncode, ours.returncode) == (1, 2)
    assert "the script's own" in alone.stderr
    assert ours.stderr == alone.stderr
    assert "padding-leak" in ours.stdout  # in the step before it failed
    assert "h.square().mean().backward()" in ours.stdout


@pytest.mark.parametrize(
    ("terminal", "arguments", "bar"),
    [(True, [], True), (True, ["--json"], False), (False, [], False)],
)
def test_a_bar_where_somebody_looks_at_it(
    tmp_path: Path, terminal: bool, arguments: list[str], bar: bool
) -> None:
    pty = pytest.importorskip("pty", reason="terminals are others on Windows")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    ours, theirs = pty.openpty() if terminal else os.pipe()
    given = [*arguments, str(tmp_path / "report.json")] if arguments else []
    done = subprocess.run(
        [sys.executable, "-m", "maskgrad.cli.main", "doctor", *given, str(script), "--right"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        check=False,
        env={**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"},
    )
    os.close(theirs)
    told = b""
    with contextlib.suppress(OSError):  # the end of a terminal is an error
        while part := os.read(ours, 4096):
            told += part
    os.close(ours)
    assert done.returncode == 0, told
    assert "0 findings" in done.stdout
    assert "padding-leak: numbers" not in done.stdout
    assert (b"padding-leak: numbers in x" in told) == bar, told


@pytest.mark.parametrize(("arguments", "words"), [(["--padding", "x"], "KEY=MASK"), ([], "there is no file")])
def test_bad_arguments_of_the_command(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["doctor", *arguments, "absent.py"])
    assert done.exit_code == 2
    assert words in done.output


def test_a_watch_gives_the_program_its_own_numbers_and_takes_itself_away() -> None:
    layer = nn.Linear(3, 1)
    x, mask = torch.ones(2, 4, 3), torch.arange(4) < torch.tensor([4, 2])[:, None]
    layer(x).mean().backward()
    assert layer.weight.grad is not None
    expected, before = layer.weight.grad.clone(), torch.autograd.backward
    layer.zero_grad()
    with mg.doctor.watch({"x": "mask"}) as watched:
        for batch in DataLoader(
            [{"x": row, "mask": m} for row, m in zip(x, mask, strict=True)], batch_size=2
        ):
            layer(batch["x"]).mean().backward()
    torch.testing.assert_close(layer.weight.grad, expected, rtol=0, atol=0)
    assert torch.autograd.backward is before
    assert watched.report.kinds() == ["padding-leak"]


def test_a_watch_can_stop_when_it_has_seen_enough() -> None:
    layer, steps = nn.Linear(3, 1), 0
    batch = {"x": torch.ones(2, 4, 3), "mask": torch.arange(4) < torch.tensor([4, 2])[:, None]}
    with mg.doctor.watch(steps=2, stop=True) as watched:
        for given in DataLoader([batch] * 9, batch_size=None):
            steps += 1
            layer(given["x"])[given["mask"]].mean().backward()
    assert (steps, watched.steps, watched.report.ok) == (2, 2, True)


def test_a_watch_that_recognises_nothing_says_which_argument_to_give() -> None:
    """NaN targets and a mask that only the loss reads, in a loop without a DataLoader."""
    layer, x = nn.Linear(3, 1), torch.ones(2, 4, 3)
    target = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, torch.nan, torch.nan, torch.nan]])

    def train() -> None:
        errors = layer(x).squeeze(-1) - target
        errors[~target.isnan()].square().mean().backward()

    for padding in (None, {"absent": "mask"}):
        with mg.doctor.watch(padding) as watched:
            train()
        (note,) = watched.report.notes
        assert "none was recognised" in note.message
        assert "('input')" in note.message
        assert "padding={key: mask}" in note.message
        assert watched.unpadded == 1
    with mg.doctor.watch({"input": ~target.isnan()}) as watched:
        train()
    assert (watched.report.ok, watched.report.notes) == (True, [])
    assert watched.report.experiments
