"""safetensors: files of plain tensors under names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save, save_file

import maskgrad as mg
from maskgrad.errors import UnsupportedOperationError
from tests.ecosystem.rows import one_line, refused
from tests.ecosystem.truth import garbage


@one_line(
    "safetensors",
    "files with MaskedTensors of any layout",
    "`save_file(mg.interop.to_tensors({'x': x}), path)`, `mg.interop.from_tensors(load_file(path))`",
)
def test_there_and_back(tmp_path: Path) -> None:
    x, values, mask = garbage(4, 3)
    named = {
        "strided": x,
        "expanded": mg.masked(torch.ones(4, 3), mask[:, :1]),
        "sparse": x.to_sparse(layout=torch.sparse_csr),
        "jagged": mg.from_lengths(values, torch.tensor([3, 0, 1, 2]), layout=torch.jagged),
        "weight": torch.ones(2),
    }
    save_file(mg.interop.to_tensors(named), tmp_path / "file")
    for read in (load_file(tmp_path / "file"), load(save(mg.interop.to_tensors(named)))):
        back = mg.interop.from_tensors(read)
        assert set(back) == set(named)
        for name, tensor in named.items():
            assert back[name].tolist() == tensor.tolist()
            assert back[name].layout == tensor.layout


@refused("safetensors", "a MaskedTensor in `save` and `save_file`", "`mg.interop.to_tensors(tensors)`")
def test_masked_tensors_refuse(tmp_path: Path) -> None:
    x, _, _ = garbage(4, 3)
    with pytest.raises(UnsupportedOperationError, match=r"from_tensors\(load_file\(path\)\)"):
        save_file({"x": x}, tmp_path / "file")
    with pytest.raises(UnsupportedOperationError, match=r"mg\.interop\.to_tensors\(tensors\)"):
        save({"x": x})
