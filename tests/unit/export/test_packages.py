"""Without the optional packages: a light import, and an error that names the extra."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import maskgrad as mg


@pytest.mark.processes(of="file")
def test_a_package_that_is_absent_is_named_but_without_a_comparison_no_runtime_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    for package in ("onnx", "onnxscript", "onnxruntime"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            words = rf"'{package}'.*pip install 'maskgrad\[onnx\]'"
            with pytest.raises(mg.MissingDependencyError, match=words):
                mg.onnx.export(torch.exp, torch.ones(2), path)
            assert not path.exists()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert mg.onnx.export(torch.exp, torch.ones(2), path, verify=False).path.is_file()
