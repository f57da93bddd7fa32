"""product and segment_product: PyTorch's product of what is specified, and the gradient wherever factors are zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.unit.kernels.masks import MaskedSuite
from tests.unit.kernels.segments import SegmentSuite, rows_of

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
inf, nan = math.inf, math.nan
#: Of an infinity and a zero PyTorch's product depends on the order.
SPECIAL = [[0.0, 1, -1], [0, 0, 1], [nan, 0, 1], [nan, 1, 1], [-inf, 1, -1], [inf, 1, 1], [1, 1, 1]]


def factors(shape: Sequence[int]) -> Tensor:
    """Products that neither overflow nor vanish, with a zero here and there."""
    size = max(math.prod(shape), 1)
    near = torch.where(torch.rand(tuple(shape)) < 0.5, -1.0, 1.0)
    if size < 10_000:  # else rounding adds up
        near = near * (0.8 + 0.4 * torch.rand(tuple(shape)))
    return torch.where(torch.rand(tuple(shape)) < 3 / size, 0.0, near)


class TestProduct(MaskedSuite):
    """With its gradient."""

    kernel = "product"
    rounding = ROUNDING
    slack = 20.0
    complex = True
    integers = INTEGERS

    def operands(self, shape: Sequence[int], where: Any, variant: Any) -> tuple[Tensor, ...]:
        return (factors(shape),)

    def alone(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.prod(), torch.ones((), dtype=torch.float64)

    def nothing(self, dtype: torch.dtype) -> tuple[float, ...]:
        return (1.0,)

    def whole_numbers(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        some = torch.rand(tuple(shape)) * math.prod(shape)
        return torch.where(some < 3, 0, torch.where(some < 20, 2, 1)).to(dtype)

    def special(self) -> list[list[float]]:  # of NaN and infinities the values alone are PyTorch's: see below
        return [row for row in SPECIAL if all(map(math.isfinite, row))]


class TestSegmentProduct(SegmentSuite):
    kernel = "segment_product"
    rounding = ROUNDING
    slack = 20.0
    widens = True
    integers = INTEGERS
    complex = True

    operands = TestProduct.operands
    whole_numbers = TestProduct.whole_numbers
    nothing = TestProduct.nothing

    def alone(self, x: Tensor) -> Tensor:
        return x.prod()

    special = TestProduct.special


def test_large_integers_are_exact() -> None:
    values = torch.tensor([3, 7, 2**40 + 1, 9]).repeat(500)
    mask = torch.zeros(2000, dtype=torch.bool)
    mask[[0, 1001, 1002]] = True
    assert kernels.product(values, mask, (0,), False)[0].item() == 21 * (2**40 + 1)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("row", [(0.0, 3.0), (0.0, 0.0), (inf, 3.0), (0.0, inf), (1e30, 1e30), (0.0, 1e30)])
def test_the_gradient_is_the_product_of_the_others(body: str, row: tuple[float, float]) -> None:
    """Also where the product overflows, and of a list of segments."""
    plain = torch.tensor(row, requires_grad=True)
    (wanted,) = torch.autograd.grad(plain.prod(0), plain)
    values = torch.tensor([*row, nan], requires_grad=True)
    mask = torch.tensor([True, True, False])
    with use_kernels(body):
        found = kernels.product(values, mask, (0,), False)[0]
        torch.testing.assert_close(found, plain.prod(0), equal_nan=True)
        (slope,) = torch.autograd.grad(found, values)
        assert slope[2] == 0
        torch.testing.assert_close(slope[:2], wanted, equal_nan=True)
        of_segment = kernels.segment_product(plain, rows_of([2]))
        torch.testing.assert_close(of_segment[0], found, equal_nan=True)
        (slope,) = torch.autograd.grad(of_segment.sum(), plain)
        assert slope.tolist() == plain.flip(0).tolist()  # PyTorch divides, which overflows


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_infinities_and_nan_stay_in_their_group(body: str) -> None:
    values, rows = torch.tensor(SPECIAL), rows_of([3] * len(SPECIAL))
    with use_kernels(body):
        found = kernels.segment_product(values.view(-1), rows)
        torch.testing.assert_close(found, values.prod(1), equal_nan=True)
        for x, dim in ((values, 1), (values.t().contiguous(), 0)):
            found, _ = kernels.product(x, torch.ones_like(x, dtype=torch.bool), (dim,), False)
            torch.testing.assert_close(found, values.prod(1), equal_nan=True)
