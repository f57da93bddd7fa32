"""The program examples/finetune: a run, and the Trainer beside one pass over the whole batch."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from typer.testing import CliRunner

from examples.finetune import model, run
from examples.finetune.__main__ import app
from examples.finetune.tests.test_gradients import step_with_few_labels

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about itself


def test_a_quick_run_writes_its_report(tmp_path) -> None:
    done = CliRunner().invoke(app, ["--quick", "--seed", "1", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    numbers = json.loads((tmp_path / "finetune.json").read_text())
    assert max(numbers["errors"]["mg.GradientAccumulator"]) < 1e-5
    assert len(numbers["errors"]["mean of means"]) == run.QUICK.steps
    assert numbers["Trainer"]["Trainer with the mixin"] < 1e-4
    assert (tmp_path / "finetune.png").read_bytes().startswith(b"\x89PNG")
    assert "Trainer with the mixin" in done.output


def test_the_trainer_with_the_mixin_goes_where_the_whole_batch_leads() -> None:
    torch.manual_seed(0)
    start = model.StressReader(width=8, layers=1)
    errors = run._trainer_errors(copy.deepcopy(start), [step_with_few_labels(), step_with_few_labels()])
    assert errors["Trainer with the mixin"] < 1e-4
    assert not errors["Trainer"] < 0.05  # NaN, where a micro-batch has no label
