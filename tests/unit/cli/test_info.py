"""``maskgrad info``: one JSON object, in which what is off is not hidden."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import maskgrad as mg
from maskgrad.cli.main import app
from maskgrad.integrations import installing
from maskgrad.masked_tensor.torch_patches.table import PATCHES


def facts(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["info", *arguments])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def test_json_is_one_object() -> None:
    found = facts()
    assert set(found) == {"versions", "kernels", "patches", "integrations", "devices", "threads"}
    assert found["versions"]["maskgrad"] == mg.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["kernels"]["cpu"] == mg.kernels_in_use()
    assert found["threads"]["threads of PyTorch"] == torch.get_num_threads()
    assert [patch["target"] for patch in found["patches"]] == [patch.target for patch in PATCHES]


def test_what_is_off_or_absent_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    place = [patch.target for patch in PATCHES].index("torch.autograd.Function.apply")
    monkeypatch.setattr(PATCHES[place], "state", "torch.autograd.Function.apply is not there")

    def version(name: str) -> str:
        if name == "polars":
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    found = facts()
    assert found["versions"]["polars"] is None
    patch = found["patches"][place]
    assert (patch["state"], patch["is_off"]) == (PATCHES[place].state, True)
    assert patch["without"].startswith("a MaskedTensor given to")


def test_without_the_compiler_of_the_kernels_it_says_so() -> None:
    program = "import sys; sys.modules['numba'] = None; from maskgrad.cli.main import app; app(['info'])"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["threads"]["compiled kernels run on"] == "nothing: numba cannot be used"


def test_other_packages_are_listed_and_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {found["package"]: found for found in facts()["integrations"]}
    assert tuple(found) == installing.KNOWN
    assert not any(package["installed"] for package in found.values())
    monkeypatch.setattr(installing, "KNOWN", ("safetensors",))
    (tried,) = facts("--install")["integrations"]
    assert tried["installed"] == tried["available"]
    assert tried["off"] == []
    mg.integrations.uninstall("safetensors")
