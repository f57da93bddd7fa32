"""masked_sum, masked_mean, masked_count, masked_expand for CUDA against the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskgrad.kernels.cuda import tiles
from tests.effort import examples
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cuda, reference
from tests.unit.kernels.layouts import SHAPES_AND_DIMS, layouts

NAMES = ["masked_sum", "masked_mean"]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

pytestmark = pytest.mark.usefixtures("device")


def check(values, mask, dim, keepdim=False, dtype=None):
    count = reference.masked_count(mask, dim, keepdim)
    found = cuda.masked_count(mask, dim, keepdim)
    torch.testing.assert_close(found, count, rtol=0, atol=0)
    names = NAMES if values.is_floating_point() or dtype is not None else NAMES[:1]
    for name in names:
        expected, _ = getattr(reference, name)(values, mask, dim, keepdim, dtype)
        result, number = getattr(cuda, name)(values, mask, dim, keepdim, dtype)
        assert result.is_contiguous()
        torch.testing.assert_close(number, count, rtol=0, atol=0)
        tolerance = ROUNDING.get(result.dtype, 0)
        torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance * 10)


@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
def test_any_dimensions(shape, dim):
    values, mask = torch.randn(shape), torch.rand(shape) < 0.6
    for keepdim in (False, True):
        check(values, mask, dim, keepdim)


@pytest.mark.parametrize("garbage", oracles.GARBAGE)
@pytest.mark.parametrize("dtype", FLOATS)
def test_garbage_under_the_mask_is_never_added(dtype, garbage):
    mask = torch.rand(37, 53) < 0.5
    mask[3], mask[:, 5] = False, False
    values = oracles.soiled(torch.randn(37, 53).to(dtype), mask, garbage)
    for dim in ((0,), (1,), (0, 1)):
        check(values, mask, dim)
        assert cuda.masked_sum(values, mask, dim, False)[0].isfinite().all()


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]
)
def test_integers_add_up_to_int64(dtype):
    values, mask = torch.randint(0, 100, (40, 9)).to(dtype), torch.rand(40, 9) < 0.5
    for dim in ((0,), (0, 1)):
        check(oracles.soiled(values, mask, 0), mask, dim)


def test_large_integers_are_exact():
    values, mask = torch.full((10_001,), 2**50 + 1), torch.arange(10_001) % 2 == 0
    assert cuda.masked_sum(values, mask, (0,), False)[0].item() == 5001 * (2**50 + 1)


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout, device):
    values, mask = (x.to(device) for x in layouts()[layout])
    for dim in ((1,), (-1,), (0, 2)):
        check(values, mask, dim)


@pytest.fixture
def _small_tiles(monkeypatch):
    """Tiles so small that little data is enough for several pieces."""
    monkeypatch.setattr(tiles, "WIDEST", 32)
    monkeypatch.setattr(tiles, "LINE", 4)
    monkeypatch.setattr(tiles, "ENTRIES", 64)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize(("shape", "dim"), [((1500,), (0,)), ((3, 900), (1,)), ((900, 3), (0,))])
def test_long_reductions_are_put_together_from_pieces(shape, dim):
    values, mask = torch.randn(shape), torch.rand(shape) < 0.5
    assert tiles.table((values, mask), dim).tile.pieces > 1
    check(values, mask, dim)
    check(values, mask, dim, True, torch.float64)
    check((values * 9).to(torch.int32), mask, dim)


@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_dtype_casts_first(source, dtype):
    values, mask = (torch.randn(60, 7) * 9).to(source), torch.rand(60, 7) < 0.5
    check(values, mask, (0,), False, dtype)


def test_places_beyond_32_bits(monkeypatch):
    """No test has memory for such tensors; the wide type must give what the narrow one gives."""
    values, mask = torch.randn(30, 40), torch.rand(30, 40) < 0.5
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    check(values, mask, (0,))
    check(values, mask, (1,))


@pytest.mark.parametrize("layout", list(layouts()))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_spread(layout, dtype, device):
    mask = layouts()[layout][1].to(device)
    for dim in ((1,), (-1,), (0, 2)):
        shape = [1 if d in {k % mask.ndim for k in dim} else n for d, n in enumerate(mask.shape)]
        for grad in (torch.randn(shape), torch.full(shape, torch.nan)):
            found = cuda.masked_expand(grad, mask, dtype)
            expected = reference.masked_expand(grad, mask, dtype)
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
            assert not found[~mask].any()


@settings(max_examples=examples(25))
@given(st.data())
def test_any_shape_order_and_expansion(data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))

    def view(made):
        order = data.draw(st.permutations(range(len(shape))))
        sizes = [1 if data.draw(st.booleans()) and d % 2 else shape[d] for d in order]
        return made(sizes).permute(sorted(range(len(shape)), key=order.__getitem__)).expand(shape)

    values, mask = view(torch.randn), view(lambda sizes: torch.rand(sizes) < 0.5)
    dim = data.draw(st.lists(st.sampled_from(range(len(shape))), unique=True))
    check(values, mask, tuple(dim), data.draw(st.booleans()))
