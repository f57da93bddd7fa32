"""The program examples/finetune: a run, and the Trainer beside one pass over the whole batch."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from examples.finetune import run
from examples.finetune.__main__ import app

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about itself


def test_a_quick_run_writes_its_report(tmp_path) -> None:
    done = CliRunner().invoke(app, ["--quick", "--seed", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    numbers = json.loads((tmp_path / "finetune.json").read_text())
    assert max(numbers["errors"]["mg.GradientAccumulator"]) < 1e-5
    assert len(numbers["errors"]["mean of means"]) == run.QUICK.steps
    assert numbers["Trainer"]["Trainer with the mixin"] < 1e-4
    assert not numbers["Trainer"]["Trainer"] < 1e-3
    assert (tmp_path / "finetune.png").read_bytes().startswith(b"\x89PNG")
    assert "Trainer with the mixin" in done.output
