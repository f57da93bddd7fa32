"""``torch.compile(dynamic=True)``: integers of the patterns are variable too, and mean what they mean eagerly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg

LAYOUTS = ("strided", "jagged", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc")


def batch(layout: str) -> mg.MaskedTensor:
    torch.manual_seed(0)
    if layout in ("strided", "jagged"):
        data = torch.randn(3, 5, 4)
        data[2] = torch.nan
        return mg.from_lengths(data, torch.tensor([2, 5, 0]), layout=getattr(torch, layout))
    data = torch.randn(4, 6)
    blocksize = (2, 3) if "bs" in layout else None
    mask = torch.rand(2, 2).gt(0.3).repeat_interleave(2, 0).repeat_interleave(3, 1)
    return mg.masked(data, mask).to_sparse(layout=getattr(torch, layout), blocksize=blocksize)


def program(x: Any) -> list[Any]:
    turned = x.transpose(0, 1)
    summed = [x.sum(0), x.mean(-1), x.amax(1, keepdim=True), turned.sum(0)]
    return [*summed, x.softmax(1), turned.exp(), x[:, :2], x.unsqueeze(0) * 2]


@pytest.mark.layouts
@pytest.mark.parametrize("layout", LAYOUTS)
def test_as_eagerly(layout: str) -> None:
    x = batch(layout)
    compiled = torch.compile(program, dynamic=True, fullgraph=True, backend="eager")
    for found, expected in zip(compiled(x), program(x), strict=True):
        assert found.shape == expected.shape
        assert torch.equal(found.mask, expected.mask)
        torch.testing.assert_close(found.filled(0.0), expected.filled(0.0))
