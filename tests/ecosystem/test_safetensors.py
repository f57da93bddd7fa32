"""safetensors: files of plain tensors under names."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save, save_file

import maskgrad as mg
from tests.ecosystem.truth import assert_refused, garbage


def test_masked_tensors_refuse(tmp_path: Path) -> None:
    x, values, mask = garbage(4, 3)
    named = {
        "strided": x,
        "expanded": mg.masked(torch.ones(4, 3), mask[:, :1]),
        "sparse": x.to_sparse(layout=torch.sparse_csr),
        "jagged": mg.from_lengths(values, torch.tensor([3, 0, 1, 2]), layout=torch.jagged),
        "weight": torch.ones(2),
    }
    save_file(mg.interop.to_tensors(named), tmp_path / "file")
    back = mg.interop.from_tensors(load_file(tmp_path / "file"))
    assert [(name, back[name].tolist(), back[name].layout) for name in named] == [
        (name, x.tolist(), x.layout) for name, x in named.items()
    ]
    words = r"mg\.interop\.to_tensors\(tensors\).*from_tensors\(load_file\(path\)\)"
    assert_refused(words, lambda: save_file({"x": x}, tmp_path / "file"), lambda: save({"x": x}))
