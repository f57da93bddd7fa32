"""``torch.compile(dynamic=True)``: integers of the patterns are variable too, and mean what they mean eagerly."""

from __future__ import annotations

from collections.abc import Callable
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


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "sum(0)": lambda x: x.sum(0),
    "sum(1)": lambda x: x.sum(1),
    "mean(-1)": lambda x: x.mean(-1),
    "softmax(1)": lambda x: x.softmax(1),
    "transpose": lambda x: x.transpose(0, 1).exp(),
    "moved and summed": lambda x: x.transpose(0, 1).sum(0),
    "amax, keepdim": lambda x: x.amax(1, keepdim=True),
    "x[:, :2]": lambda x: x[:, :2],
    "unsqueeze": lambda x: x.unsqueeze(0) * 2,
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_as_eagerly(layout: str, program: str) -> None:
    function, x = PROGRAMS[program], batch(layout)
    try:
        expected = function(x)
    except mg.MaskgradError:
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(function, dynamic=True, fullgraph=True, backend="eager")(x)
        return
    found = torch.compile(function, dynamic=True, fullgraph=True, backend="eager")(x)
    assert found.shape == expected.shape
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.filled(0.0), expected.filled(0.0))
