"""Norms of segments for CUDA against the reference."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.kernels.bodies import cuda, reference
from tests.unit.kernels.segment_cases import FLOATS, LENGTHS, ROUNDING, orders, pointers_of

pytestmark = pytest.mark.usefixtures("device")
SHAPES = list(zip(LENGTHS, [(3,), (), (17,), (), ()], strict=True))


def agree(name, *args):
    """What the reference gives, after a comparison."""
    found, expected = getattr(cuda, name)(*args), getattr(reference, name)(*args)
    single = not isinstance(expected, tuple)
    for x, y in zip([found] if single else found, [expected] if single else expected, strict=True):
        tolerance = ROUNDING.get(y.dtype, 0)
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance * 10, equal_nan=True)
    return expected


ORDERS = [0.0, 1.0, 2.0, 3.0, -1.0, math.inf, -math.inf]


def check(values, pointers, order, ord):
    norm = agree("segment_norm", values, pointers, order, ord)
    with torch.no_grad():
        agree("segment_norm_backward", torch.randn_like(norm), values, norm, pointers, order, ord)


@pytest.mark.parametrize("dtype", FLOATS)
def test_norm_and_gradient(dtype):
    for lengths, dense in SHAPES[:2]:
        values = (torch.randn(sum(lengths), *dense) * 3).to(dtype)
        values[:1] = 0
        for order, ord in zip(orders(len(values)) * 4, ORDERS, strict=False):
            check(values, pointers_of(lengths), order, ord)


@pytest.mark.parametrize("ord", [0.0, 1.0, 2.0, math.inf, -math.inf])
def test_what_is_not_finite_stays_in_its_segment_and_ties_share(ord):
    values = torch.randn(36)
    values[2], values[8], values[14] = math.nan, math.inf, -math.inf
    values[18:24], values[24:30] = 0, torch.tensor([2.0, -2, 1, 2, -1, 1])
    check(values, pointers_of([6] * 6), None, ord)


def test_nothing_at_all():
    for ord in (2.0, -1.0, math.inf, -math.inf):
        check(torch.zeros(0), pointers_of([0, 0]), None, ord)
        check(torch.ones(2), pointers_of([0, 2, 0]), None, ord)


def test_strides_and_places_beyond_32_bits(monkeypatch):
    check(torch.randn(3, 40).t(), pointers_of([7, 33]), torch.randperm(40), 2.0)
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    check(torch.randn(40, 3), pointers_of([7, 33]), torch.randperm(40), math.inf)
