"""Each optimizer that PyTorch has is PyTorch's class: hooks, states, graphs through a step, interruptions."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import maskgrad as mg


def test_hooks_run_once_however_often_pytorchs_class_was_made() -> None:
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 1))
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        kind([nn.Parameter(torch.ones(1))])  # wraps the step of its class
    optimizer = mg.optim.AdamW([p, q])
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for _ in range(2):
        p.grad = torch.ones(3)
        q.grad = torch.ones(2, 1).to_sparse(1)
        optimizer.step()
    assert calls == ["before", "after"] * 2
    assert optimizer.state[p]["step"] == optimizer.state[q]["step"] == 2


def test_groups_and_gradients_are_as_before_when_pytorchs_step_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 1))
    optimizer = mg.optim.RMSprop([p, q])
    p.grad, q.grad = torch.ones(3), torch.ones(2, 1).to_sparse(1)
    groups, grads = optimizer.param_groups, (p.grad, q.grad)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["torch.optim.rmsprop"], "rmsprop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert optimizer.param_groups is groups
    assert (p.grad, q.grad) == grads
    assert q.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_gradients_go_through_a_differentiable_step(name: str) -> None:
    found = []
    for library in (mg.optim, torch.optim):
        scale = torch.tensor(2.0, requires_grad=True)
        param = (scale * torch.tensor([1.0, -3.0])).clone()
        optimizer = getattr(library, name)([param], lr=0.1, differentiable=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # .grad of a tensor that is no leaf
            param.grad = torch.tensor([0.5, 2.0])
            optimizer.step()
        param.square().sum().backward()
        found.append(scale.grad)
    torch.testing.assert_close(*found)
    p = nn.Parameter(torch.ones(3, 1))
    p.grad = torch.ones(3, 1).to_sparse(1)
    with pytest.raises(ValueError, match="differentiable=True is available for dense gradients only"):
        getattr(mg.optim, name)([p], differentiable=True).step()
    assert p.tolist() == [[1.0]] * 3
