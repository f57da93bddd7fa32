"""``maskgrad info``: the same facts as text and as JSON, and what is off is not hidden."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import maskgrad as mg
from maskgrad.cli import environment
from maskgrad.cli.main import app
from maskgrad.integrations import installing
from maskgrad.masked_tensor.torch_patches.table import PATCHES


def output(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["info", *arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


def test_json_is_one_object() -> None:
    facts = json.loads(output("--json"))
    assert set(facts) == {"versions", "kernels", "patches", "integrations", "devices", "threads"}
    assert facts["versions"]["maskgrad"] == mg.__version__
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["kernels"]["cpu"] == mg.kernels_in_use()
    assert facts["threads"]["threads of PyTorch"] == torch.get_num_threads()
    assert [patch["target"] for patch in facts["patches"]] == [patch.target for patch in PATCHES]


def test_text_names_every_part() -> None:
    text = output()
    for words in ("Versions", torch.__version__, "Kernels for large tensors on cpu", "Devices", "Threads"):
        assert words in text
    for patch in PATCHES:
        assert patch.target in text
    assert "off" not in text.split()


def test_what_is_off_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    place = [patch.target for patch in PATCHES].index("torch.autograd.Function.apply")
    monkeypatch.setattr(PATCHES[place], "state", "torch.autograd.Function.apply is not there")
    text = output()
    assert "torch.autograd.Function.apply is not there: a MaskedTensor given to" in text
    assert json.loads(output("--json"))["patches"][place]["state"] == PATCHES[place].state


def test_packages_that_are_absent_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def version(name: str) -> str:
        if name == "polars":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    assert "not installed: polars" in output()
    assert json.loads(output("--json"))["versions"]["polars"] is None


def test_without_the_compiler_of_the_kernels_it_says_so() -> None:
    program = "import sys; sys.modules['numba'] = None; from maskgrad.cli.main import app; app(['info'])"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "nothing: numba cannot be used" in done.stdout


def test_other_packages_are_listed_and_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {found["package"]: found for found in json.loads(output("--json"))["integrations"]}
    assert tuple(facts) == installing.KNOWN
    assert not any(found["installed"] for found in facts.values())
    assert "not installed: wrong in silence" in output()
    monkeypatch.setattr(installing, "KNOWN", ("safetensors",))
    monkeypatch.setattr(environment, "KNOWN", ("safetensors",))
    (found,) = json.loads(output("--json", "--install"))["integrations"]
    assert found["installed"] == found["available"]
    assert found["off"] == []
    mg.integrations.uninstall("safetensors")
