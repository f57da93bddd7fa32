"""Stored MaskedTensors as gradients and as parameters: a step costs what is specified."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import on, poisoned

LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
ENTRIES = [[1.0, None, 0.0], [None, None, -2.0]]


def in_layout(x: mg.MaskedTensor, layout: torch.layout) -> mg.MaskedTensor:
    return x.to_sparse(layout=layout, blocksize=(1, 1) if layout in LAYOUTS[3:] else None)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("named", [False, True])
def test_a_sparse_parameter_is_trained(layout: torch.layout, named: bool) -> None:
    torch.manual_seed(0)
    mask = on([1, 0, 1], [0, 1, 1])
    start, data = torch.rand(2, 3), torch.rand(3, 4)
    x = in_layout(mg.masked(start, mask), layout).detach().requires_grad_()
    dense = start.clone().requires_grad_()
    ours = mg.optim.SGD([("x", x)] if named else [x], lr=0.1, momentum=0.9, weight_decay=0.1)
    theirs = mg.optim.SGD([dense], lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        ours.zero_grad()
        (x @ data).square().sum().backward()
        ours.step()
        theirs.zero_grad()
        (mg.masked(dense, mask) @ data).square().sum().backward()
        theirs.step()
    assert x.layout == layout
    torch.testing.assert_close(x.filled(0), torch.where(mask, dense.detach(), 0))
    assert ours.state[x._values]["momentum_buffer"].shape == x._values.shape
    assert len(ours.state_dict()["param_groups"][0]["params"]) == 1


def test_a_result_is_no_parameter() -> None:
    x = poisoned(ENTRIES, torch.float32).to_sparse().requires_grad_()
    with pytest.raises(ValueError, match="non-leaf"):
        mg.optim.SGD([x * 2])
