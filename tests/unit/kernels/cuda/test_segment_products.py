"""Products of segments for CUDA against the reference."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.kernels.bodies import cuda, reference
from tests.unit.kernels.segment_cases import FLOATS, LENGTHS, ROUNDING, orders, pointers_of

pytestmark = pytest.mark.usefixtures("device")
SHAPES = list(zip(LENGTHS, [(3,), (), (5,), (), ()], strict=True))


def agree(name, *args):
    """What the reference gives, after a comparison."""
    found, expected = getattr(cuda, name)(*args), getattr(reference, name)(*args)
    single = not isinstance(expected, tuple)
    for x, y in zip([found] if single else found, [expected] if single else expected, strict=True):
        tolerance = ROUNDING.get(y.dtype, 0)
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance * 10, equal_nan=True)
    return expected


def check(values, pointers, order):
    product, rest, zeros = agree("segment_prod", values, pointers, order)
    if values.is_floating_point():
        agree("segment_prod_backward", torch.randn_like(product), values, rest, zeros, pointers, order)


def factors(*shape):
    """Products that neither overflow nor vanish, with a zero here and there."""
    signs = torch.where(torch.rand(shape) < 0.5, -1.0, 1.0)
    return torch.where(torch.rand(shape) < 0.03, 0.0, signs * (0.8 + 0.4 * torch.rand(shape)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_product_and_gradient(dtype):
    for lengths, dense in SHAPES:
        values = factors(sum(lengths), *dense).to(dtype)
        for order in orders(len(values)):
            check(values, pointers_of(lengths), order)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_integers_are_multiplied_in_int64(dtype):
    check(torch.randint(0, 4, (40,)).to(dtype), pointers_of([7, 0, 33]), torch.randperm(40))


def test_zeros_infinities_and_nan():
    rows = [[0, 2, 3], [0, 0, 3], [0, math.inf, 1], [math.nan, 0, 1], [1e30, 1e30, 2]]
    agree("segment_prod", torch.tensor(rows).view(-1)[:12], pointers_of([3] * 4), None)
    product, rest, _ = cuda.segment_prod(torch.tensor(rows[4]), pointers_of([3]), None)
    assert product.item() == math.inf
    assert rest.item() == pytest.approx(2e60)


def test_strides_and_places_beyond_32_bits(monkeypatch):
    check(factors(3, 40).t(), pointers_of([7, 33]), torch.randperm(40))
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    check(factors(40, 3), pointers_of([7, 33]), torch.randperm(40))
