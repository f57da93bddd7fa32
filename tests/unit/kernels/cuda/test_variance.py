"""masked_variance for CUDA against the reference, and its derivative."""

from __future__ import annotations

import pytest
import torch

from maskgrad.kernels.cuda import tiles
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cuda, reference
from tests.unit.kernels.layouts import SHAPES_AND_DIMS, layouts

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ROUNDING = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

pytestmark = pytest.mark.usefixtures("device")


def check(values, mask, dim, correction=1.0):
    for keepdim in (False, True):
        found = cuda.masked_variance(values, mask, dim, keepdim, correction)
        expected = reference.masked_variance(values, mask, dim, keepdim, correction)
        tolerance = ROUNDING[expected[0].dtype]
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 10, equal_nan=True)
    variance, mean, count = expected
    arguments = torch.randn_like(variance), values, mask, mean, count, dim, correction
    with torch.no_grad():
        back, slope = (
            cuda.masked_variance_backward(*arguments),
            reference.masked_variance_backward(*arguments),
        )
    tolerance = ROUNDING[values.dtype]
    torch.testing.assert_close(back, slope, rtol=tolerance, atol=tolerance * 10, equal_nan=True)
    assert not back[~mask].any()


@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
@pytest.mark.parametrize("correction", [0.0, 1.0])
def test_any_dimensions(shape, dim, correction):
    check(torch.randn(shape), torch.rand(shape) < 0.6, dim, correction)


@pytest.mark.parametrize("garbage", oracles.GARBAGE)
@pytest.mark.parametrize("dtype", FLOATS)
def test_garbage_under_the_mask_is_never_added(dtype, garbage):
    mask = torch.rand(17, 33) < 0.5
    mask[3], mask[:, 5] = False, False
    values = oracles.soiled(torch.randn(17, 33).to(dtype), mask, garbage)
    for dim in ((0,), (1,), (0, 1)):
        check(values, mask, dim)


def test_what_is_not_finite_stays_in_its_slice():
    values = torch.randn(5, 6)
    for row, strange in enumerate([torch.nan, torch.inf, -torch.inf]):
        values[row, 2] = strange
    mask = torch.rand(5, 6) < 0.8
    mask[:, 2] = True
    check(values, mask, (1,))


def test_a_large_mean_costs_no_digits():
    values, mask = (torch.randn(4, 2000) * 16).round() / 16, torch.rand(4, 2000) < 0.5
    expected = cuda.masked_variance(values, mask, (1,), False, 1.0)[0]
    found = cuda.masked_variance(values + 2.0**18, mask, (1,), False, 1.0)[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.fixture
def _small_tiles(monkeypatch):
    """Tiles so small that little data is enough for several pieces."""
    monkeypatch.setattr(tiles, "WIDEST", 32)
    monkeypatch.setattr(tiles, "LINE", 4)
    monkeypatch.setattr(tiles, "ENTRIES", 64)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize(("shape", "dim"), [((1500,), (0,)), ((900, 3), (0,))])
def test_long_reductions_are_put_together_from_pieces(shape, dim):
    values, mask = torch.randn(shape) + 100, torch.rand(shape) < 0.5
    mask[200:700] = False
    assert tiles.table((values, mask), dim).tile.pieces > 1
    expected = torch.var(values.double()[mask[:, 0] if len(shape) > 1 else mask], dim=0)
    mask = mask[:, :1].expand(shape) if len(shape) > 1 else mask
    found = cuda.masked_variance(values, mask, dim, False, 1.0)[0]
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)
    check(values.double(), mask, dim)


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout, device):
    values, mask = (x.to(device) for x in layouts()[layout])
    for dim in ((1,), (-1,), (0, 2)):
        check(values, mask, dim)


def test_places_beyond_32_bits(monkeypatch):
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    check(torch.randn(30, 7), torch.rand(30, 7) < 0.5, (0,))
