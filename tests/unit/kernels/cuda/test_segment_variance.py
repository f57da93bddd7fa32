"""Variances of segments for CUDA against the reference."""

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


def check(values, pointers, order, correction=1.0):
    agree("segment_mean", values, pointers, order)
    variance, mean = agree("segment_variance", values, pointers, order, correction)
    grad = torch.randn_like(variance)
    with torch.no_grad():
        agree("segment_variance_backward", grad, values, mean, pointers, order, correction)


@pytest.mark.parametrize("dtype", FLOATS)
def test_variance_mean_and_gradient(dtype):
    for lengths, dense in SHAPES:
        values = (torch.randn(sum(lengths), *dense) * 3 + 2).to(dtype)
        for order in orders(len(values)):
            check(values, pointers_of(lengths), order, 0.0 if order is None else 1.0)


def test_what_is_not_finite_stays_in_its_segment():
    values = torch.randn(24)
    values[2], values[8], values[14] = math.nan, math.inf, -math.inf
    check(values, pointers_of([6] * 4), None)


def test_a_large_mean_costs_no_digits():
    values, pointers = (torch.randn(200) * 16).round() / 16, pointers_of([150, 50])
    still = cuda.segment_variance(values, pointers, None, 1.0)[0]
    moved = cuda.segment_variance(values + 2.0**18, pointers, None, 1.0)[0]
    torch.testing.assert_close(moved, still, rtol=1e-6, atol=0)


def test_strides_and_places_beyond_32_bits(monkeypatch):
    check(torch.randn(3, 40).t(), pointers_of([7, 33]), torch.randperm(40))
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    check(torch.randn(40, 3), pointers_of([7, 33]), torch.randperm(40))
