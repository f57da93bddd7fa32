"""masked_extremum, its gradient, and masked_position for CUDA against the reference: exactly."""

from __future__ import annotations

import pytest
import torch

from maskgrad.kernels.cuda import tiles
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cuda, reference
from tests.unit.kernels.layouts import SHAPES_AND_DIMS, layouts

pytestmark = pytest.mark.usefixtures("device")


def agree(name, *args):
    found, expected = getattr(cuda, name)(*args), getattr(reference, name)(*args)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    return expected


def check(values, mask, dim, largest=True):
    agree("masked_extremum", values, mask, dim, False, largest)
    best, count = agree("masked_extremum", values, mask, dim, True, largest)
    if values.is_floating_point():
        agree("masked_extremum_spread", torch.randn(best.shape) / count, values, best, mask)
    for d in dim:
        agree("masked_position", values, mask, d, False, largest)


@pytest.mark.parametrize(("shape", "dim"), [case for case in SHAPES_AND_DIMS if 0 not in case[0]])
def test_any_dimensions(shape, dim):
    values, mask = torch.randint(-3, 4, shape).float(), torch.rand(shape) < 0.6
    check(values, mask, dim)
    check(values, mask, dim, False)


@pytest.mark.parametrize("garbage", oracles.GARBAGE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_garbage_under_the_mask_never_wins(dtype, garbage):
    mask = torch.rand(17, 33) < 0.5
    mask[3], mask[:, 5] = False, False
    values = oracles.soiled(torch.randn(17, 33).to(dtype), mask, garbage)
    check(values, mask, (0,), False)
    check(values, mask, (1,))


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]
)
def test_integers(dtype):
    values, mask = torch.randint(-99, 99, (20, 9)).to(dtype), torch.rand(20, 9) < 0.5
    mask[:, 4] = False
    if dtype == torch.int64:
        values[0, 0], values[1, 0] = 2**62 + 1, 2**62
    for largest in (True, False):
        check(oracles.soiled(values, mask, 0), mask, (0,), largest)


def test_what_is_not_finite():
    values = torch.tensor(
        [[1.0, torch.nan, torch.nan, 2], [torch.inf, torch.inf, 1, 1], [-torch.inf] * 4, [torch.nan] * 4]
    )
    mask = torch.tensor([[True, True, True, True]] * 4)
    mask[2, 0] = mask[3, 0] = False
    for largest in (True, False):
        check(values, mask, (1,), largest)
        check(values, mask, (0,), largest)


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout, device):
    values, mask = (x.to(device) for x in layouts()[layout])
    for dim in ((0,), (1,), (-1, 0)):
        check(values, mask, dim)


@pytest.fixture
def _small_tiles(monkeypatch):
    """Tiles so small that little data is enough for several pieces."""
    monkeypatch.setattr(tiles, "WIDEST", 32)
    monkeypatch.setattr(tiles, "LINE", 4)
    monkeypatch.setattr(tiles, "ENTRIES", 64)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize(("shape", "dim"), [((1500,), (0,)), ((900, 3), (0,))])
def test_long_reductions_are_put_together_from_pieces(shape, dim):
    values, mask = torch.randint(-9, 9, shape).float(), torch.rand(shape) < 0.5
    assert tiles.table((values, mask), dim).tile.pieces > 1
    check(values, mask, dim)
    values[7] = torch.nan
    agree("masked_extremum", values, mask, dim, False, False)


def test_places_beyond_32_bits(monkeypatch):
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    check(torch.randn(30, 7), torch.rand(30, 7) < 0.5, (0,))
