"""masked_batch_norm for CUDA against the reference, and its derivative."""

from __future__ import annotations

import math

import pytest
import torch

from maskgrad.kernels.cuda import tiles
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cuda, reference
from tests.unit.kernels.layouts import layouts

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ROUNDING = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

pytestmark = pytest.mark.usefixtures("device")


def close(found, expected, tolerance):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 10, equal_nan=True)


def check(values, mask, dim, weight=None, bias=None, eps=1e-3, garbage=torch.nan):
    """Both directions against the reference; the gradient has garbage under the mask."""
    tolerance = ROUNDING[values.dtype]
    arguments = values, mask, dim, weight, bias, eps
    found, expected = cuda.masked_batch_norm(*arguments), reference.masked_batch_norm(*arguments)
    assert [x.dtype for x in found] == [x.dtype for x in expected]
    close(found, expected, tolerance)
    assert torch.equal(found[4], mask.sum(dim, keepdim=True) if dim else mask.long())
    assert not (found[0] != 0)[~mask].any()
    _, mean, _, scale, count = expected
    shapes = [x.shape for x in (weight, bias) if x is not None]
    level = list(torch.broadcast_shapes(count.shape, *shapes))
    grad = oracles.soiled(torch.randn(values.shape).to(values.dtype), mask, garbage)
    arguments = grad, values, mask, mean, scale, count, dim, weight, level, eps
    found, expected = (body.masked_batch_norm_backward(*arguments) for body in (cuda, reference))
    assert [x.dtype for x in found] == [x.dtype for x in expected]
    close(found[0], expected[0], tolerance)
    close(found[1:], expected[1:], max(ROUNDING[found[1].dtype], 1e-12) * 4)
    assert not (found[0] != 0)[~mask].any()


def parameters(values, dim):
    """A weight and a bias with an entry for each group."""
    dims = {d % values.ndim for d in dim}
    shape = [1 if d in dims else n for d, n in enumerate(values.shape)]
    return torch.randn(2, *shape).to(values.dtype)


@pytest.mark.parametrize("garbage", oracles.GARBAGE)
@pytest.mark.parametrize("dtype", FLOATS)
def test_garbage_under_the_mask_is_never_added(dtype, garbage):
    mask = torch.rand(6, 5, 7) < 0.5
    mask[:, 3], mask[:, :, 2], mask[:, 4] = False, False, True
    values = oracles.soiled(torch.randn(6, 5, 7).to(dtype), mask, garbage)
    for dim in ((0, 2), (0,)):
        check(values, mask, dim, *parameters(values, dim), garbage=garbage)
    if dtype == torch.float64:
        out, mean, variance, _, _ = cuda.masked_batch_norm(values, mask, (0, 2), None, None, 0.0)
        left = values[:, 0][mask[:, 0]]
        close(
            torch.stack((mean[0, 0, 0], variance[0, 0, 0])),
            torch.stack((left.mean(), left.var(correction=0))),
            1e-12,
        )
        close(out[:, 0][mask[:, 0]], (left - left.mean()) / left.std(correction=0), 1e-12)


@pytest.mark.parametrize(
    ("shape", "dim"),
    [((7,), (0,)), ((1,), (0,)), ((5, 3), (0,)), ((5, 3), (-1,)), ((5, 3), ()), ((2, 3, 5), (0, 2)),
     ((1, 3, 1, 2), (0, 2)), ((2, 3, 2, 3), (1, 3)), ((0, 3), (0,)), ((0, 3), (1,)), ((3, 0, 2), (1, 2))],
)  # fmt: skip
def test_any_dimensions(shape, dim):
    values, mask = torch.randn(shape), torch.rand(shape) < 0.6
    weight, bias = parameters(values, dim)
    check(values, mask, dim, weight, bias)
    check(values, mask, dim, None, bias)
    check(values, mask, dim)


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout, device):
    values, mask = (x.to(device) for x in layouts()[layout])
    for dim in ((1,), (0, 2)):
        check(values, mask, dim, *parameters(values, dim))


@pytest.mark.parametrize("infinite", [False, True])
def test_parameters_that_vary_inside_a_group(infinite):
    """Groups of three channels, as in group normalisation, one of them without entries."""
    values, mask = torch.randn(4, 3, 20), torch.rand(4, 3, 20) < 0.7
    mask[:, 1] = False
    weight, bias = torch.randn(2, 1, 3, 1)
    if infinite:
        values[2], weight[0, 1] = 1.0, math.inf
    check(values, mask, (1, 2), weight, bias, 0.0)
    check(values, mask, (1, 2), None, bias)


def test_groups_longer_than_a_tile():
    values, mask = torch.randn(2500, 3), torch.rand(2500, 1).expand(2500, 3) < 0.5
    check(values, mask, (0,), *parameters(values, (0,)))


def test_large_groups_are_put_together_from_pieces(monkeypatch):
    monkeypatch.setattr(tiles, "LINE", 4)
    monkeypatch.setattr(tiles, "ENTRIES", 64)
    monkeypatch.setattr(tiles, "WIDEST", 64)
    values, mask = torch.randn(300, 3, dtype=torch.float64) + 3, torch.rand(300, 3) < 0.5
    mask[100:250, 1] = False
    assert tiles.table((values, mask), (0,)).tile.pieces > 1
    check(values, mask, (0,), *parameters(values, (0,)))


def test_places_beyond_32_bits(monkeypatch):
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    values, mask = torch.randn(30, 7), torch.rand(30, 7) < 0.5
    check(values, mask, (0,), *parameters(values, (0,)))
