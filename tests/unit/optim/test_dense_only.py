"""Optimizers that PyTorch has for dense gradients: passed through, bit for bit, and refused with the reason."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg
from tests.poison import nan
from tests.unit.optim.optimizers import bits

KINDS = {"Muon": {"momentum": 0.9}, "Adafactor": {"lr": 0.1}, "LBFGS": {"lr": 0.5, "history_size": 3}}
every_kind = pytest.mark.parametrize("name", KINDS)


def losses(optimizer: Any, p: nn.Parameter, steps: int = 5) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((p - torch.arange(6.0).view(3, 2)) ** 2).sum()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


@every_kind
def test_they_are_those_of_torch(name: str) -> None:
    start = torch.randn(3, 2)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    ours, theirs = getattr(mg.optim, name), getattr(torch.optim, name)
    a, b = ours([p], **KINDS[name]), theirs([q], **KINDS[name])
    losses(a, p)
    losses(b, q)
    assert torch.equal(bits(p), bits(q))
    state = copy.deepcopy(a.state_dict()), copy.deepcopy(b.state_dict())
    a.load_state_dict(state[1])
    b.load_state_dict(state[0])
    losses(a, p)
    losses(b, q)
    assert torch.equal(bits(p), bits(q))
    losses(copy.deepcopy(a), p, 0)


@every_kind
@pytest.mark.parametrize("kind", ["COO", "CSR", "masked"])
def test_others_are_refused_before_anything_moves(name: str, kind: str) -> None:
    p, q = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2))
    optimizer = getattr(mg.optim, name)([p, q], **KINDS[name])
    p.grad = torch.ones(3, 2)
    mask = torch.tensor([[True], [False], [True]]).expand(3, 2)
    gradient: Any = mg.masked(torch.where(mask, 1.0, nan), mask)
    if kind == "COO":
        gradient = gradient.to_sparse(1).to_sparse_tensor()
    elif kind == "CSR":
        gradient = gradient.to_sparse_csr()
    for again in (optimizer, copy.deepcopy(optimizer)):
        own = again.param_groups[0]["params"]
        own[0].grad = torch.ones(3, 2)
        mg.attach_gradient(own[1], gradient)
        step = again.step if name != "LBFGS" else (lambda again=again: again.step(lambda: torch.ones(())))
        with pytest.raises(
            TypeError, match=rf"gradient of parameter 1 of group 0 .* mg\.optim\.{name} .*to_dense\(\)"
        ):
            step()
        assert all(bool((t == 1).all()) for t in own)
        own[1].grad = own[1].grad.to_dense()
        step()
        assert name == "LBFGS" or not bool((own[1] == 1).all())


def test_frozen_entries_stay() -> None:
    p = nn.Parameter(torch.ones(3, 2))
    mg.train_only(p, torch.tensor([True, False, True])[:, None])
    p.grad = torch.ones(3, 2)
    mg.optim.Muon([p], lr=0.1).step()
    assert (p != 1).any(1).tolist() == [True, False, True]
