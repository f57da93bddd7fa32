"""masked_prod for CUDA against the reference, and its derivative."""

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


def close(found, expected):
    tolerance = ROUNDING.get(expected.dtype, 0)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 10, equal_nan=True)


def check(values, mask, dim):
    for keepdim in (False, True):
        found = cuda.masked_prod(values, mask, dim, keepdim)
        expected = reference.masked_prod(values, mask, dim, keepdim)
        for x, y in zip(reversed(found), reversed(expected), strict=True):  # numbers of factors first
            close(x, y)
    product, rest, zeros, _ = expected
    if values.is_floating_point():
        grad = torch.randn(product.shape).to(values.dtype)
        back = cuda.masked_prod_backward(grad, values, rest, zeros, mask)
        close(back, reference.masked_prod_backward(grad, values, rest, zeros, mask))
        assert not back[~mask].any()


def factors(*shape):
    """Products that neither overflow nor vanish, with a zero here and there."""
    signs = torch.where(torch.rand(shape) < 0.5, -1.0, 1.0)
    return torch.where(torch.rand(shape) < 0.05, 0.0, signs * (0.8 + 0.4 * torch.rand(shape)))


@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
def test_any_dimensions(shape, dim):
    check(factors(*shape), torch.rand(shape) < 0.6, dim)


@pytest.mark.parametrize(("garbage", "dtype"), list(zip(oracles.GARBAGE, FLOATS, strict=True)))
def test_garbage_under_the_mask_is_never_multiplied(garbage, dtype):
    mask = torch.rand(17, 33) < 0.5
    mask[3], mask[:, 5] = False, False
    values = oracles.soiled(factors(17, 33).to(dtype), mask, garbage)
    for dim in ((0,), (1,), (0, 1)):
        check(values, mask, dim)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_integers_are_multiplied_in_int64(dtype):
    values, mask = torch.randint(0, 4, (9, 11)).to(dtype), torch.rand(9, 11) < 0.7
    for dim in ((0,), (1,)):
        check(values, mask, dim)
    assert cuda.masked_prod(values, mask, (0,), False)[0].dtype == torch.int64


def test_zeros_infinities_and_nan():
    rows = [[0, 2, 3], [0, 0, 3], [0, torch.inf, 1], [torch.nan, 0, 1], [1e30, 1e30, 2], [0, 1e30, 1e30]]
    values = torch.tensor(rows)
    check(values, torch.ones(6, 3, dtype=torch.bool), (1,))
    mask = torch.tensor([[False, True, True]]).expand(6, 3)
    check(values, mask, (1,))
    assert cuda.masked_prod(values, mask, (1,), False)[0].tolist()[0] == 6
    # What torch says depends on the order, inf * 0 or 0 * 1e30; here a zero makes the product zero.
    last = torch.tensor([[1e30, 1e30, 0.0]])
    assert cuda.masked_prod(last, torch.ones(1, 3, dtype=torch.bool), (1,), False)[0].item() == 0


@pytest.mark.parametrize(("shape", "dim"), [((700,), (0,)), ((600, 3), (0,))])
def test_long_reductions_are_put_together_from_pieces(shape, dim, monkeypatch):
    for name, size in (("WIDEST", 32), ("LINE", 4), ("ENTRIES", 64)):
        monkeypatch.setattr(tiles, name, size)
    values, mask = (factors(*shape).abs() + 0.01) ** 0.1, torch.rand(shape) < 0.5
    mask[200:400] = False
    assert tiles.table((values, mask), dim).tile.pieces > 1
    check(values.double(), mask, dim)
    values[150], values[500] = 0, 0
    check(values.double(), mask, dim)


def test_any_strides_and_places_beyond_32_bits(device, monkeypatch):
    for values, mask in list(layouts().values())[::3]:  # the interpreter multiplies one by one
        check(values.to(device), mask.to(device), (0, 2))
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    check(factors(30, 7), torch.rand(30, 7) < 0.5, (0,))
