"""masked_norm for CUDA against the reference, and its derivative."""

from __future__ import annotations

import math

import pytest
import torch

from maskgrad.kernels.cuda import tiles
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cuda, reference
from tests.unit.kernels.layouts import SHAPES_AND_DIMS, layouts

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ROUNDING = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
ORDERS = (0.0, 1.0, 2.0, math.inf)

pytestmark = pytest.mark.usefixtures("device")


def close(found, expected):
    tolerance = ROUNDING[expected.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 10, equal_nan=True)


def check(values, mask, dim, orders=ORDERS):
    for ord in orders:
        for keepdim in (False, True):
            found = cuda.masked_norm(values, mask, dim, keepdim, ord)
            expected = reference.masked_norm(values, mask, dim, keepdim, ord)
            assert torch.equal(found[1], expected[1])
            close(found[0], expected[0])
        norm = expected[0]
        grad = torch.randn(norm.shape).to(values.dtype)
        back = cuda.masked_norm_backward(grad, values, mask, norm, ord)
        close(back, reference.masked_norm_backward(grad, values, mask, norm, ord))
        assert not back[~mask].any()


@pytest.mark.parametrize(("shape", "dim"), [case for case in SHAPES_AND_DIMS if 0 not in case[0]])
def test_any_dimensions(shape, dim):
    check(torch.randn(shape), torch.rand(shape) < 0.6, dim)


def test_nothing_at_all():
    for ord in (0.0, 1.0, 2.0):
        check(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool), (0,), (ord,))


@pytest.mark.parametrize(("garbage", "dtype"), list(zip(oracles.GARBAGE, FLOATS, strict=True)))
def test_garbage_under_the_mask_is_never_added(garbage, dtype):
    mask = torch.rand(17, 33) < 0.5
    mask[3], mask[:, 5] = False, False
    values = oracles.soiled(torch.randn(17, 33).round(decimals=1).to(dtype), mask, garbage)
    for dim in ((0,), (1,), (0, 1)):
        check(values, mask, dim)


def test_what_is_not_finite_stays_in_its_slice_and_ties_share():
    values = torch.randn(7, 6)
    for row, strange in enumerate([torch.nan, torch.inf, -torch.inf]):
        values[row, 2] = strange
    values[3], values[4] = 0, torch.tensor([2.0, -2, 1, 0, 2, -2])
    mask = torch.rand(7, 6) < 0.8
    mask[:, 2] = True
    check(values, mask, (1,))


def test_other_orders_are_left_to_the_reference():
    values, mask = torch.randn(5, 6), torch.rand(5, 6) < 0.5
    for ord in (3.0, 0.5, -1.0):
        found, expected = (x.masked_norm(values, mask, (1,), False, ord) for x in (cuda, reference))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("shape", "dim"), [((700,), (0,)), ((600, 3), (0,))])
def test_long_reductions_are_put_together_from_pieces(shape, dim, monkeypatch):
    for name, size in (("WIDEST", 32), ("LINE", 4), ("ENTRIES", 64)):
        monkeypatch.setattr(tiles, name, size)
    values, mask = torch.randn(shape), torch.rand(shape) < 0.5
    mask[200:400] = False
    assert tiles.table((values, mask), dim).tile.pieces > 1
    check(values.double(), mask, dim, (1.0, math.inf))


def test_any_strides_and_places_beyond_32_bits(device, monkeypatch):
    for values, mask in layouts().values():
        check(values.to(device), mask.to(device), (0, 2), (math.inf,))
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    check(torch.randn(30, 7), torch.rand(30, 7) < 0.5, (0,), (2.0,))
