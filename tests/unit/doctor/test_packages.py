"""Models of installed packages: the line of the program that calls one, and the package's own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg

SOURCE = """
import torch

class Pooler(torch.nn.Linear):
    def forward(self, x):
        hidden = super().forward(x)
        return hidden.mean(1)
"""
BATCH = {"x": torch.ones(2, 3, 4), "mask": torch.tensor([[True, True, True], [True, False, False]])}


@pytest.fixture
def pooler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """Import a model from a folder of installed packages."""
    folder = tmp_path / "site-packages"
    (folder / "poolers").mkdir(parents=True)
    (folder / "poolers" / "__init__.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "poolers", raising=False)
    return importlib.import_module("poolers").Pooler(4, 2)  # type: ignore[no-any-return]


def test_both_lines_are_named(pooler: nn.Module) -> None:
    def step(b: dict[str, Any]) -> Tensor:
        return pooler(b["x"]).square().mean()  # type: ignore[no-any-return]

    (finding,) = mg.doctor.examine(step, BATCH, quick=True).findings
    assert finding.code.startswith('return pooler(b["x"])')
    assert finding.package_file.endswith("__init__.py")
    assert finding.package_line == SOURCE.splitlines().index("        return hidden.mean(1)") + 1
    assert "poolers" in str(finding)
    assert "return hidden.mean(1)" in str(finding)
