"""Gradients pass through MaskedTensors that a reentrant checkpoint is given, or returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import maskgrad as mg
from maskgrad.masked_tensor.torch_patches.autograd_functions import CHECKPOINTS, apply_on_parts
from tests.poison import assert_entries, nan, on

DATA = [1.0, nan, 3.0]
MASK = on(1, 0, 1)


def leaf() -> torch.Tensor:
    return torch.tensor(DATA, requires_grad=True)


def reentrant(function: Any, *args: Any) -> Any:
    return checkpoint(function, *args, use_reentrant=True)


def test_as_argument_and_result() -> None:
    data = leaf()
    y = reentrant(lambda v: v * v, mg.masked(data, MASK))
    assert_entries(y, [1.0, None, 9.0])
    y.sum().backward()
    assert data.grad is not None
    assert data.grad.tolist() == [2.0, 0.0, 6.0]


def test_made_inside_ended_inside_and_in_containers() -> None:
    data = leaf()
    y = reentrant(lambda d: mg.masked(d, MASK) * 2, data)
    assert_entries(y, [2.0, None, 6.0])
    z = reentrant(lambda given: (given["x"] * 3).filled(0.0), {"x": mg.masked(data, MASK)})
    many = reentrant(lambda v, by, none: {"a": [v * by, none], "n": 4}, mg.masked(data, MASK), 5.0, None)
    assert many["a"][1] is None
    assert many["n"] == 4
    (y.sum() + z.sum() + many["a"][0].sum()).backward()
    assert data.grad is not None
    assert data.grad.tolist() == [10.0, 0.0, 10.0]


def test_sparse_layouts() -> None:
    data = leaf()
    x = mg.masked(data, MASK).to_sparse()
    y = reentrant(lambda v: v * v, x)
    assert y.layout is torch.sparse_coo
    y.sum().backward()
    assert data.grad is not None
    assert data.grad.tolist() == [2.0, 0.0, 6.0]


def test_runs_twice_with_the_same_random_numbers() -> None:
    data = torch.randn(200, requires_grad=True)
    runs = []

    def noisy(v: Any) -> Any:
        runs.append(torch.nn.functional.dropout(v, 0.5).filled(0.0).ne(0))
        return (v * v).sum()

    torch.manual_seed(3)
    reentrant(noisy, mg.masked(data, torch.arange(200) % 3 > 0)).backward()
    assert len(runs) == 2
    assert torch.equal(*runs)


def test_plain_tensors_are_served_as_before() -> None:
    data = torch.tensor([1.0, 2.0], requires_grad=True)
    y, number = reentrant(lambda v: (v * v, 3), data)
    assert number == 3
    y.sum().backward()
    assert data.grad is not None
    assert data.grad.tolist() == [2.0, 4.0]
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        reentrant(lambda v: v * 2, data.detach())


def test_what_requires_no_gradient_is_said_to() -> None:
    x = mg.masked(torch.tensor(DATA), MASK)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        y = reentrant(lambda v: v * 2, x)
    assert not y.requires_grad


def test_other_functions_of_checkpoints_get_what_they_get() -> None:
    """The one that saves arguments in older versions keeps what is no tensor as it is."""

    class Other(Function):
        __module__ = CHECKPOINTS

        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.kept = args
            return torch.empty(0)

    x = mg.masked(torch.tensor(DATA), MASK)
    assert Other.apply(torch.ones(1), x).numel() == 0
    assert apply_on_parts(lambda _, *args: args, Other, (1, x)) == (1, x)
