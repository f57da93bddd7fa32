"""The rules by themselves: the same bits as torch's single-tensor steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from maskgrad.kernels.updates.formulas import adagrad_, sgd_


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adagrad_bit_for_bit(weight_decay: float, maximize: bool) -> None:
    p, q = torch.randn(100), torch.nn.Parameter(torch.empty(100))
    q.data.copy_(p)
    options: dict[str, Any] = {"weight_decay": weight_decay, "maximize": maximize}
    optimizer = torch.optim.Adagrad([q], lr=0.1, foreach=False, **options)
    state_sum = torch.zeros(100)
    for _ in range(5):
        q.grad = torch.randn(100)
        optimizer.step()
        adagrad_(p, q.grad, state_sum, lr=0.1, eps=1e-10, **options)
    assert torch.equal(p, q.detach())
    assert torch.equal(state_sum, optimizer.state[q]["sum"])


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
def test_sgd_bit_for_bit(nesterov: bool, maximize: bool) -> None:
    p, q = torch.randn(100), torch.nn.Parameter(torch.empty(100))
    q.data.copy_(p)
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    options |= {"nesterov": nesterov, "maximize": maximize}
    optimizer = torch.optim.SGD([q], foreach=False, **options)
    buffer = torch.zeros(100)
    for _ in range(5):
        q.grad = torch.randn(100)
        optimizer.step()
        sgd_(p, q.grad, buffer, dampening=0.0, **options)
    assert torch.equal(p, q.detach())


def test_the_gradient_is_not_written() -> None:
    grad = torch.ones(3)
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1, "maximize": True}
    adagrad_(torch.ones(3), grad, torch.zeros(3), eps=0.0, **options)
    sgd_(torch.ones(3), grad, torch.zeros(3), momentum=0.9, dampening=0.0, nesterov=True, **options)
    assert grad.tolist() == [1.0] * 3
