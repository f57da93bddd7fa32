"""Without the optional packages: a light import, and an error that names the extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import maskgrad as mg


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_package_that_is_absent(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(mg.MissingDependencyError, match=rf"'{package}'.*pip install 'maskgrad\[onnx\]'"):
        mg.onnx.export(torch.exp, torch.ones(2), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.processes(of="file")
def test_without_a_comparison_no_runtime_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert mg.onnx.export(torch.exp, torch.ones(2), tmp_path / "model.onnx", verify=False).path.is_file()
