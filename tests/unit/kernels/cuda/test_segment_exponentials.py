"""Logarithms of sums of exponentials of segments for CUDA against the reference."""

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
    result = agree("segment_logsumexp", values, pointers, order)
    agree("segment_logsumexp_backward", torch.randn_like(result), values, result, pointers, order)


@pytest.mark.parametrize("dtype", FLOATS)
def test_logsumexp_and_gradient(dtype):
    for lengths, dense in SHAPES:
        values = (torch.randn(sum(lengths), *dense) * 9).to(dtype)
        for order in orders(len(values)):
            check(values, pointers_of(lengths), order)


def test_what_is_not_finite_stays_in_its_segment():
    values = torch.randn(36)
    values[2], values[8], values[14], values[20:24] = math.nan, math.inf, -math.inf, 1e38
    values[24:30] = -math.inf
    check(values, pointers_of([6] * 6), None)


def test_strides_and_places_beyond_32_bits(monkeypatch):
    check(torch.randn(3, 40).t(), pointers_of([7, 33]), torch.randperm(40))
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    check(torch.randn(40, 3), pointers_of([7, 33]), torch.randperm(40))
