"""What is peculiar to SGD: buffers that start late, sparse buffers of torch, no state without momentum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from maskgrad import attach_gradient
from maskgrad.masked_tensor import masked
from maskgrad.optim import SGD
from tests.unit.optim.kinds import coo


@pytest.mark.parametrize("kind", ["rows", "entries", "masked"])
def test_every_entry_starts_its_buffer_with_its_first_gradient(kind: str) -> None:
    # One row at a time, each must follow a dense torch.optim.SGD that sees only its own steps.
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}
    start, gradients = torch.randn(3, 2), torch.randn(6, 2)
    p = nn.Parameter(start.clone())
    optimizer = SGD([p], **options)
    order = [0, 1, 0, 2, 1, 0]
    for row, gradient in zip(order, gradients, strict=True):
        dense = torch.zeros(3, 2).index_copy(0, torch.tensor([row]), gradient[None])
        grad: Any = {
            "rows": coo([[row]], gradient[None], (3, 2)),
            "entries": coo([[row, row], [0, 1]], gradient, (3, 2)),
            "masked": masked(dense, (torch.arange(3) == row)[:, None].expand(3, 2)),
        }[kind]
        attach_gradient(p, grad)
        optimizer.step()
    for row in range(3):
        q = nn.Parameter(start[row].clone())
        reference = torch.optim.SGD([q], **options)
        for taken, gradient in zip(order, gradients, strict=True):
            if taken == row:
                q.grad = gradient.clone()
                reference.step()
        torch.testing.assert_close(p[row], q, rtol=1e-6, atol=1e-7)


def test_the_marker_lives_only_while_something_has_not_started() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = SGD([p], lr=0.1, momentum=0.9, dampening=0.5)
    p.grad = coo([[1]], [1.0], (3,))
    optimizer.step()
    assert optimizer.state[p]["momentum_started"].tolist() == [False, True, False]
    p.grad = torch.ones(3)
    optimizer.step()
    assert optimizer.state[p].keys() == {"momentum_buffer"}
    torch.testing.assert_close(optimizer.state[p]["momentum_buffer"], torch.tensor([1.0, 1.4, 1.0]))


def test_the_marker_survives_saving_and_believes_the_buffer_after_torch() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = SGD([p], lr=0.1, momentum=0.9, dampening=0.5)
    p.grad = coo([[1]], [1.0], (3,))
    optimizer.step()
    state = optimizer.state_dict()
    again = SGD([p], lr=0.1, momentum=0.9, dampening=0.5)
    again.load_state_dict(state)
    p.grad = coo([[1]], [1.0], (3,))
    again.step()
    assert again.state[p]["momentum_started"].tolist() == [False, True, False]
    torch.testing.assert_close(again.state[p]["momentum_buffer"], torch.tensor([0.0, 1.4, 0.0]))

    theirs = torch.optim.SGD([p], lr=0.1, momentum=0.9, dampening=0.5)
    theirs.load_state_dict(again.state_dict())
    p.grad = torch.tensor([1.0, 1.0, 0.0])
    theirs.step()
    again.load_state_dict(theirs.state_dict())
    p.grad = coo([[0, 2]], [1.0, 1.0], (3,))
    again.step()
    torch.testing.assert_close(again.state[p]["momentum_buffer"], torch.tensor([0.95, 1.76, 1.0]))


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_a_sparse_buffer_of_torch_becomes_a_dense_one(dampening: float) -> None:
    p = nn.Parameter(torch.ones(3, 1))
    theirs = torch.optim.SGD([p], lr=0.1, momentum=0.9, dampening=dampening)
    p.grad = coo([[1]], [[1.0]], (3, 1))
    theirs.step()
    ours = SGD([p], lr=0.1, momentum=0.9, dampening=dampening)
    ours.load_state_dict(theirs.state_dict())
    p.grad = coo([[1, 2]], [[1.0], [1.0]], (3, 1))
    ours.step()
    expected = [[0.0], [0.9 + 1 - dampening], [1.0]]
    torch.testing.assert_close(ours.state[p]["momentum_buffer"], torch.tensor(expected))
