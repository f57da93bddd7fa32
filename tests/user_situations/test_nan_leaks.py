"""NaN and infinity that used to leak through entries nobody wanted."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, gradient, leaf, nan, on, poisoned


def test_dividing_by_zero_in_an_entry_that_is_dropped() -> None:
    x, z = leaf(1.0, 1.0), torch.tensor([0.0, 1.0]).double()
    y = x / mg.masked(z, z != 0)
    assert_entries(y, [None, 1.0])
    assert gradient(y, x).tolist() == [0.0, 1.0]


def test_a_mask_that_only_the_result_reveals() -> None:
    def f(v: Any) -> Any:
        return (v - 1).sqrt()

    x = leaf(0.5, 5.0)
    ok = f(x.detach()).isfinite()
    y = torch.where(ok, f(mg.masked(x, ok)), x * 0)
    assert_entries(y, [0.0, 2.0])
    assert gradient(y, x).tolist() == [0.0, 0.25]


def test_writing_over_an_overflowed_entry() -> None:
    x = leaf(0.0, 1000.0)
    y = (mg.masked(x, x < 700).exp() + 1).log()
    y[1] = 0.0
    assert_entries(y, [math.log(2), 0.0])
    assert gradient(y, x).tolist() == [0.5, 0.0]


@pytest.mark.parametrize(
    "loss",
    [
        lambda p, t: ((p - t) ** 2).sum(),
        lambda p, t: (mg.masked(p, t.mask) - t).square().sum(),
        lambda p, t: F.mse_loss(p, t, reduction="sum"),
    ],
)
def test_masking_before_or_after_the_square_is_the_same(loss: Any) -> None:
    target, prediction = torch.tensor([nan, 1.0]).double(), leaf(0.0, 0.0)
    result = loss(prediction, mg.from_nan(target))
    assert_entries(result, 1.0)
    assert gradient(result, prediction).tolist() == [0.0, -2.0]


def test_a_logarithm_that_continues_a_line() -> None:
    x = leaf(0.0, 4.0, -3.0)
    y = torch.where(x > 2, mg.masked(x, x > 2).log2(), 2 * x)
    assert_entries(y, [0.0, 2.0, -6.0])
    assert_entries(gradient(y, x), [2.0, 1 / (4 * math.log(2)), 2.0])


@pytest.mark.parametrize("select", [lambda y, x: y.compressed(), lambda y, x: y[x > -1]])
def test_selecting_after_a_function_with_a_pole(select: Any) -> None:
    x = leaf(-1.0, 0.5, -3.0)
    y = select(mg.masked(x, x > -1).log1p(), x)
    assert_entries(y, [math.log(1.5)])
    assert_entries(gradient(y, x), [0.0, 2 / 3, 0.0])


def test_one_broken_row_of_a_batch() -> None:
    layer = nn.Linear(2, 1)
    y = layer(mg.from_nan(torch.tensor([[1.0, 2.0], [3.0, 4.0], [nan, nan]])))
    y.sum().backward()
    assert y.mask.tolist() == [[True], [True], [False]]
    assert_entries(layer.weight.grad, [[4.0, 6.0]])
    assert_entries(layer.bias.grad, [2.0])


@pytest.mark.parametrize(
    ("function", "slope"),
    [(torch.log, 0.25), (torch.sqrt, 0.25),
     (torch.rsqrt, -0.0625), (torch.lgamma, 1.2561177), (torch.reciprocal, -0.0625)],
)  # fmt: skip
def test_cleaning_input_and_output_is_not_the_users_task(function: Any, slope: float) -> None:
    x = leaf(0.0, 4.0, nan, -1.0)
    assert_entries(gradient(function(mg.masked(x, x > 0)), x), [0.0, slope, 0.0, 0.0])


@pytest.mark.parametrize(
    "norm",
    [lambda y: torch.linalg.vector_norm(y, 2, 1), lambda y: y.pow(2).sum(1).sqrt(), lambda y: y.norm(dim=1)],
)
def test_norms_of_padding(norm: Any) -> None:
    x = leaf([3.0, 4.0], [nan, nan])
    result = norm(mg.masked(x, on([1], [0])))
    assert_entries(result, [5.0, None])
    assert_entries(gradient(result, x), [[0.6, 0.8], [0.0, 0.0]])


def test_a_loss_of_nothing_is_nan_and_trains_nothing() -> None:
    w = leaf(1.0, 2.0)
    loss = F.mse_loss(w * poisoned([None, None]), torch.zeros(2).double())
    assert_nothing(loss, nan, w)
    assert_entries(gradient(w.sum() + 0.1 * loss, w), [1.0, 1.0])
