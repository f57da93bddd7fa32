"""Masked softmax and running sums on plain tensors: each slice as if alone, gradient exactly zero under the mask."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import gradient, inf, leaf, nan, on

DATA, MASK = [[1.0, 4.0, nan], [inf, nan, -inf], [2.0, inf, 3.0]], on([1, 1, 0], [0, 0, 0], [1, 0, 1])
ROWS = [[1.0, 4.0], None, [2.0, 3.0]]
ORACLES: dict[str, Any] = {
    "softmax": lambda row: row.softmax(0),
    "log_softmax": lambda row: row.log_softmax(0),
    "softmin": lambda row: F.softmin(row, 0),
    "normalize": lambda row: F.normalize(row, 2.0, 0),
    "cumsum": lambda row: row.cumsum(0),
    "cumprod": lambda row: row.cumprod(0),
}


def masked(name: str, data: torch.Tensor, **arguments: Any) -> torch.Tensor:
    order = (2.0,) if name == "normalize" else ()
    return getattr(mg.functional, name)(data, *order, **{"dim": 1, "mask": MASK} | arguments)


@pytest.mark.parametrize("name", ORACLES)
def test_each_row_is_treated_as_if_alone_and_so_is_its_gradient(name: str) -> None:
    data = leaf(*DATA)
    result = masked(name, data)
    assert type(result) is torch.Tensor
    weights = torch.arange(9.0, dtype=torch.float64).reshape(3, 3)
    grad = gradient(torch.where(MASK, result, 0) * weights, data)
    assert grad[~MASK].tolist() == [0.0] * 5
    for i, row in enumerate(ROWS):
        if row is not None:
            alone = leaf(*row)
            expected = ORACLES[name](alone)
            torch.testing.assert_close(result[i][MASK[i]], expected)
            torch.testing.assert_close(grad[i][MASK[i]], gradient(expected * weights[i][MASK[i]], alone))


@pytest.mark.parametrize("name", ORACLES)
def test_the_dtype_asked_for_is_computed_in_and_the_dimension_must_exist(name: str) -> None:
    assert masked(name, torch.tensor(DATA, dtype=torch.float16), dtype=torch.float64).dtype == torch.float64
    with pytest.raises(IndexError, match="out of range"):
        masked(name, torch.zeros(3, 3), dim=5)


def test_logaddexp_lets_an_unspecified_operand_take_no_part() -> None:
    x, y = leaf(0.0, nan, 1.0, inf), leaf(0.0, 2.0, -inf, nan)
    result = mg.functional.logaddexp(x, y, input_mask=on(1, 0, 1, 0), other_mask=on(1, 1, 0, 0))
    assert result[:3].tolist() == pytest.approx([math.log(2), 2.0, 1.0])
    assert gradient(result, x).tolist() == [0.5, 0.0, 1.0, 0.0]
    assert gradient(result, y).tolist() == [0.5, 1.0, 0.0, 0.0]


def test_logaddexp_broadcasts_its_operands() -> None:
    assert mg.functional.logaddexp(torch.zeros(2, 1), torch.zeros(3)).shape == (2, 3)
