"""Models as they are: modes restored, torch.export with MaskedTensors, what is to blame."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from maskgrad.export.capture import quiet


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Any, y: Any) -> dict[str, Any]:
        return {"a": self.layer(x).softmax(1), "b": [y.std(0), x.amax(1)]}


def holey(rows: int) -> mg.MaskedTensor:
    mask = torch.rand(rows, 4) > 0.4
    return mg.masked(torch.randn(rows, 4).masked_fill(~mask, float("nan")), mask)


@pytest.mark.parametrize("strict", [False, True])
def test_torch_export_takes_and_gives_masked_tensors(strict: bool) -> None:
    model, dim, file = Model(), torch.export.Dim("rows"), io.BytesIO()
    both = [{0: dim}, {0: dim}]
    with quiet():
        program = torch.export.export(model, (holey(3), holey(3)), dynamic_shapes=(both, both), strict=strict)
        torch.export.save(program, file)
        file.seek(0)
        loaded = torch.export.load(file).module()
    for x, y in ((holey(5), holey(5)), (holey(2), mg.masked(torch.ones(2, 4), torch.zeros(2, 4) > 0))):
        found, expected = loaded(x, y), model(x, y)
        for one, other in zip([found["a"], *found["b"]], [expected["a"], *expected["b"]], strict=True):
            assert isinstance(one, mg.MaskedTensor)
            assert torch.equal(one.mask, other.mask)
            torch.testing.assert_close(one.filled(0.0), other.filled(0.0), equal_nan=True)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_torch_export_takes_and_gives_sparse_layouts(layout: torch.layout, strict: bool) -> None:
    class Twice(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2

    x = holey(3).to_sparse(layout)
    with quiet():
        loaded = torch.export.export(Twice(), (x,), strict=strict).module()
    assert (loaded(x).layout, loaded(x).tolist()) == (layout, (x * 2).tolist())
