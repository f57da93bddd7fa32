"""A mask that the graph has saved is not written; the numbers are by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nan

import maskgrad as mg
from tests.poison import assert_entries, on


def between(x: Any) -> Tensor:
    x[0, 1] = 9.0
    x.mul_(2.0)
    x[1, 2] = 9.0
    return x.sum()


def by_rows(x: Any) -> Tensor:
    x[0] = 9.0
    y = x * x
    x[1] = 9.0
    return y.sum() + x.sum()


def product(x: Any) -> Tensor:  # which saves what it was filled with, which is not written
    x[0] = 9.0
    y = x @ torch.ones(3, 2)
    x[1] = 9.0
    return y.sum()


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (between, [[2.0, 0.0, 2.0], [2.0, 2.0, 0.0]]),
        (by_rows, [[0.0] * 3, [2.0, 2.0, 0.0]]),
        (product, [[0.0] * 3, [2.0, 2.0, 0.0]]),
    ],
)
def test_gradients_between_writes(write: Callable[[Any], Tensor], expected: list[Any]) -> None:
    def loss(leaf: Tensor) -> Tensor:
        return write(mg.masked(leaf, on([1, 0, 1], [1, 1, 0])) * 1.0)

    leaf = torch.ones(2, 3, requires_grad=True)
    assert torch.autograd.grad(loss(leaf), leaf)[0].tolist() == expected
    assert torch.func.grad(loss)(leaf.detach()).tolist() == expected


def test_gradients_between_writes_through_views() -> None:
    leaf = torch.ones(2, 3, requires_grad=True)
    x = mg.masked(leaf, on([1, 0, 1], [1, 1, 0])) * 1.0
    x[0] = 9.0
    row = x[0]
    row *= 2.0
    x[1] = 9.0
    assert_entries(row.detach(), [18.0] * 3)
    row[1] = mg.unspecified
    x.sum().backward()
    assert x.tolist() == [[18.0, None, 18.0], [9.0] * 3]
    assert leaf.grad.tolist() == [[0.0] * 3] * 2


def test_a_buffer_is_written_between_forward_and_backward() -> None:
    memory = mg.masked(torch.zeros(3, 2), on(1, 0, 0)[:, None])
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    loss = (memory + w).sum()
    memory[1] = torch.tensor([5.0, 6.0])
    loss.backward()
    assert w.grad.tolist() == [1.0, 1.0]
    assert memory.tolist() == [[0.0, 0.0], [5.0, 6.0], [None, None]]


@pytest.mark.parametrize("read", ["filled", "get_data"])
def test_what_is_read_is_differentiated_with_the_mask_of_then(read: str) -> None:
    leaf = torch.tensor([1.0, 2.0, nan], requires_grad=True)
    x = mg.masked(leaf, on(1, 1, 0)) * 1.0
    x[0] = mg.unspecified
    total = getattr(x, read)().nansum()
    x[2] = 4.0
    total.backward()
    assert leaf.grad.tolist() == [0.0, 1.0, 0.0]


def test_a_hook_has_the_mask_of_its_registration() -> None:
    x = mg.masked(torch.tensor([1.0, nan], requires_grad=True), on(1, 0)) * 1.0
    seen = []
    x.register_hook(lambda gradient: seen.append(gradient.tolist()))
    x[1] = 3.0
    x.sum().backward()
    assert seen == [[1.0, None]]
