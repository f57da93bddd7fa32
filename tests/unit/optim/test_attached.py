"""Attached gradients, replaced, removed, refused early; and MaskedTensors as parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.poison import on

attach, attached = mg.attach_gradient, mg.optim.attached_gradient


def test_attaching_replaces_none_removes_and_what_does_not_fit_is_refused_at_once() -> None:
    p = nn.Parameter(torch.ones(2))
    attach(p, torch.ones(2))
    attach(p, torch.zeros(2) + p * 0)
    gradient = attached(p)
    assert isinstance(gradient, Tensor)
    assert (gradient.tolist(), gradient.requires_grad) == ([0.0, 0.0], False)
    for _ in range(2):
        attach(p, None)
    for bad, error, words in (
        (mg.masked(torch.ones(3), on(1, 0, 1)), ValueError, r"gradient of the parameter has shape \(3,\)"),
        ([1.0, 2.0], TypeError, "must be a tensor or a MaskedTensor, got list"),
        (torch.tensor([1, 2]), TypeError, r"dtype torch\.int64"),
    ):
        with pytest.raises(error, match=words):
            attach(p, bad)  # type: ignore[arg-type]
    assert attached(p) is None


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
def test_a_sparse_parameter_is_trained_at_the_cost_of_its_entries(layout: str) -> None:
    mask, start, data = on([1, 0, 1], [0, 1, 1]), torch.rand(2, 3), torch.rand(3, 4)
    blocks = {"blocksize": (1, 1)} if layout.startswith("b") else {}
    x = mg.masked(start, mask).to_sparse(layout=getattr(torch, f"sparse_{layout}"), **blocks).detach()
    dense = start.clone().requires_grad_()
    ours, theirs = (
        kind([("x", param)], lr=0.1, momentum=0.9, weight_decay=0.1)
        for kind, param in ((mg.optim.SGD, x.requires_grad_()), (torch.optim.SGD, dense))
    )
    for _ in range(3):
        for optimizer, w in ((ours, x), (theirs, mg.masked(dense, mask))):
            optimizer.zero_grad()
            (w @ data).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(x.filled(0), torch.where(mask, dense.detach(), 0))
    assert ours.state[x._values]["momentum_buffer"].shape == x._values.shape
    assert len(ours.state_dict()["param_groups"][0]["params"]) == 1
    with pytest.raises(ValueError, match="non-leaf"):
        mg.optim.SGD([x * 2])
