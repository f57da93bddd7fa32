"""product and segment_product: what the laws do not draw."""

from __future__ import annotations

import pytest
import torch

from maskgrad import kernels
from tests.unit.kernels.segments import rows_of
from tests.unit.kernels.suite import inf, nan

#: Of an infinity and a zero PyTorch's product depends on the order.
SPECIAL = [[0.0, 1, -1], [0, 0, 1], [nan, 0, 1], [nan, 1, 1], [-inf, 1, -1], [inf, 1, 1], [1, 1, 1]]


def test_large_integers_are_exact() -> None:
    values = torch.tensor([3, 7, 2**40 + 1, 9]).repeat(500)
    mask = torch.zeros(2000, dtype=torch.bool)
    mask[[0, 1001, 1002]] = True
    assert kernels.product(values, mask, (0,), False)[0].item() == 21 * (2**40 + 1)


@pytest.mark.parametrize("row", [(0.0, 3.0), (0.0, 0.0), (inf, 3.0), (0.0, inf), (1e30, 1e30), (0.0, 1e30)])
def test_the_gradient_is_the_product_of_the_others(row: tuple[float, float]) -> None:
    """Also where the product overflows, and of a list of segments."""
    plain = torch.tensor(row, requires_grad=True)
    (wanted,) = torch.autograd.grad(plain.prod(0), plain)
    values = torch.tensor([*row, nan], requires_grad=True)
    found = kernels.product(values, torch.tensor([True, True, False]), (0,), False)[0]
    (slope,) = torch.autograd.grad(found, values)
    torch.testing.assert_close(slope, torch.cat([wanted, torch.zeros(1)]), equal_nan=True)
    of_segment = kernels.segment_product(plain, rows_of([2]))
    (slope,) = torch.autograd.grad(of_segment.sum(), plain)
    assert slope.tolist() == plain.flip(0).tolist()  # PyTorch divides, which overflows


@pytest.mark.own_dtype("bfloat16", "float16")
def test_infinities_and_nan_stay_in_their_group() -> None:
    values, rows = torch.tensor(SPECIAL), rows_of([3] * len(SPECIAL))
    found = kernels.segment_product(values.view(-1), rows)
    torch.testing.assert_close(found, values.prod(1), equal_nan=True)
    found, _ = kernels.product(values, torch.ones_like(values, dtype=torch.bool), (1,), False)
    torch.testing.assert_close(found, values.prod(1), equal_nan=True)
