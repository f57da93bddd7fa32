"""Narrow columns and narrow rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg


@pytest.mark.parametrize("position", [0, 77, 9_983])
def test_nan_is_the_extremum_wherever_it_stands(position: int) -> None:
    values, mask = torch.randn(9_984, 3), torch.ones(9_984, 3, dtype=torch.bool)
    values[position, 1] = float("nan")
    values[-1, 0] = float("inf")
    x = mg.masked(values, mask)
    assert x.amax(0).isnan().filled(False).tolist() == [False, True, False]
    assert x.argmax(0).filled(-1).tolist() == values.argmax(0).tolist()


def test_an_extremum_behind_equal_and_infinite_entries_of_padding() -> None:
    shape = (4, 500, 8)
    mask = (torch.arange(500) < torch.tensor([300, 0, 500, 33])[:, None])[..., None].expand(shape)
    for value in (-float("inf"), float("nan"), 2.0):
        values = torch.where(mask, value, float("inf"))
        x = mg.masked(values, mask)
        assert x.argmax().item() == 0
        assert x.amax((1, 2)).mask.tolist() == [True, False, True, True]
        late = values.clone()
        late[2, 499, 7] = 3.0 if value == value else value
        found = mg.masked(late, mask).argmax()
        assert found.item() == (0 if value != value else ((2 * 500) + 499) * 8 + 7)


REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "var": lambda x: x.var(-1),
    "amax": lambda x: x.amax(-1),
    "argmin": lambda x: x.argmin(-1),
    "prod": lambda x: x.prod(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
}


@pytest.mark.parametrize("name", list(REDUCTIONS))
@pytest.mark.parametrize("width", [2, 3, 12, 13])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_of_few_entries(name: str, width: int, dtype: torch.dtype) -> None:
    shape = (3, 4_000, width)
    mask, reduce = torch.rand(shape) < 0.6, REDUCTIONS[name]
    values = torch.where(mask, torch.randint(-4, 5, shape) / 2, torch.nan).to(dtype)
    leaves = [values.clone().requires_grad_() for _ in range(2)]
    found, expected = (
        _with_gradient(reduce, leaf, mask, body)
        for leaf, body in zip(leaves, ("cpu", "reference"), strict=True)
    )
    assert found[0].equal(expected[0])
    rounding = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for one, other in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=rounding, atol=rounding)


def _with_gradient(reduce: Callable[[Any], Any], leaf: Tensor, mask: Tensor, body: str) -> list[Tensor]:
    with mg.use_kernels(body):
        y = reduce(mg.masked(leaf, mask))
        result = [y.mask, y.filled(0)]
        if y.is_floating_point():
            result += torch.autograd.grad(y.filled(0.0).float().sum(), leaf)
    return result
