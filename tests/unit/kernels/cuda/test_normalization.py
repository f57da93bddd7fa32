"""masked_layer_norm for CUDA against the reference and torch, and its derivative."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from maskgrad.kernels.cuda import tiles
from maskgrad.kernels.normalization import cuda as normalization
from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cuda, reference
from tests.unit.kernels.layouts import layouts

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ROUNDING = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

pytestmark = pytest.mark.usefixtures("device")


def close(found, expected, tolerance):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 10, equal_nan=True)


def check(values, mask, dims, weight=None, bias=None, eps=1e-3, centered=True, garbage=torch.nan):
    """Both directions against the reference; the gradient has garbage under the mask."""
    tolerance = ROUNDING[values.dtype]
    arguments = values, mask, dims, weight, bias, eps, centered
    found, expected = cuda.masked_layer_norm(*arguments), reference.masked_layer_norm(*arguments)
    assert [x.dtype for x in found] == [x.dtype for x in expected]
    close(found, expected, tolerance)
    assert not (found[0] != 0)[~mask].any()
    grad = oracles.soiled(torch.randn(values.shape).to(values.dtype), mask, garbage)
    arguments = grad, values, mask, *expected[1:], dims, weight, eps, centered
    found = cuda.masked_layer_norm_backward(*arguments)
    expected = reference.masked_layer_norm_backward(*arguments)
    assert [x.dtype for x in found] == [x.dtype for x in expected]
    close(found[0], expected[0], tolerance)
    close(found[1:], expected[1:], max(ROUNDING[found[1].dtype], 1e-12) * 4)
    assert not (found[0] != 0)[~mask].any()


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("garbage", oracles.GARBAGE)
@pytest.mark.parametrize("dtype", FLOATS)
def test_garbage_under_the_mask_is_never_added(dtype, garbage, centered):
    values, mask = torch.randn(17, 33).to(dtype), torch.rand(17, 33) < 0.5
    mask[3], mask[:, 5], mask[4] = False, False, True
    weight, bias = torch.randn(2, 33).to(dtype)
    soiled = oracles.soiled(values, mask, garbage)
    check(soiled, mask, 1, weight, bias, centered=centered, garbage=garbage)
    if dtype != torch.float64:
        return
    out, _, _, count = cuda.masked_layer_norm(soiled, mask, 1, weight, bias, 1e-3, centered)
    assert count.flatten().tolist() == [int(row.sum()) for row in mask]
    for row in (0, 4, 16):
        left, kept = values[row][mask[row]], mask[row]
        expected = (F.layer_norm if centered else F.rms_norm)(left, left.shape, eps=1e-3)
        close(out[row][kept], expected * weight[kept] + bias[kept], 1e-12)


@pytest.mark.parametrize("shape", [(7,), (1,), (5, 3), (2, 3, 5), (1, 3, 1, 2), (4, 1), (0, 3), (3, 0, 2)])
def test_any_dimensions(shape):
    values, mask = torch.randn(shape), torch.rand(shape) < 0.6
    for dims in range(1, len(shape) + 1):
        weight, bias = torch.randn(2, *shape[-dims:])
        check(values, mask, dims, weight, bias)
        check(values, mask, dims, None, bias, centered=False)
    check(values, mask, 1, torch.randn(shape[-1:]), None)


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout, device):
    values, mask = (x.to(device) for x in layouts()[layout])
    weight = torch.randn(values.shape[-1], 2)[:, 0]
    check(values, mask, 1, weight, torch.randn(()).expand(values.shape[-1]))
    check(values, mask, 2, torch.randn(values.shape[:-3:-1]).t(), None, centered=False)


def test_a_gradient_that_is_one_number():
    values, mask = torch.randn(6, 9), torch.rand(6, 9) < 0.6
    _, mean, scale, count = reference.masked_layer_norm(values, mask, 1, None, None, 1e-3, True)
    arguments = torch.tensor(2.0).expand(6, 9), values, mask, mean, scale, count, 1, None, 1e-3, True
    close(cuda.masked_layer_norm_backward(*arguments), reference.masked_layer_norm_backward(*arguments), 1e-5)


def test_rows_longer_than_a_tile():
    values, mask = torch.randn(3, 2500), torch.rand(3, 2500) < 0.5
    check(values, mask, 1, *torch.randn(2, 2500))
    check(values.double(), mask, 1, None, None, centered=False)


@pytest.mark.parametrize("centered", [True, False])
def test_long_rows_are_put_together_from_pieces(monkeypatch, centered):
    monkeypatch.setattr(tiles, "WIDEST", 32)
    monkeypatch.setattr(tiles, "ENTRIES", 128)
    values, mask = torch.randn(2, 300, dtype=torch.float64) + 3, torch.rand(2, 300) < 0.5
    mask[0, 20:290] = False
    assert normalization._in_pieces(values, mask, range(1, 2))
    check(values, mask, 1, *torch.randn(2, 300, dtype=torch.float64), centered=centered)
    check(values, mask & (torch.arange(2) > 0)[:, None], 1, None, None, centered=centered)


def test_an_infinite_scale_reaches_only_what_is_specified():
    """A row of equal entries, and no eps: torch's result there is NaN, and so is the gradient of the weights it met."""
    values, mask = torch.randn(30, 20), torch.rand(30, 20) < 0.7
    values[4], mask[4, :10] = 1.0, False
    mask[4, 10:] = True
    check(values, mask, 1, *torch.randn(2, 20), 0.0)


def test_what_is_not_finite_stays_in_its_row():
    values, mask = torch.randn(5, 6), torch.rand(5, 6) < 0.8
    for row, strange in enumerate([torch.nan, torch.inf, -torch.inf]):
        values[row, 2] = strange
    mask[:, 2] = True
    for centered in (True, False):
        found, expected = (
            body.masked_layer_norm(values, mask, 1, None, None, 1e-3, centered) for body in (cuda, reference)
        )
        close(found, expected, 1e-5)
        assert found[0][3:].isfinite().all()


def test_a_large_mean_costs_no_more_digits_than_in_torch():
    values = torch.randn(4, 1500) + 3e4
    exact = F.layer_norm(values.double(), (1500,))
    ours = cuda.masked_layer_norm(
        values, torch.ones_like(values, dtype=torch.bool), 1, None, None, 1e-5, True
    )[0]
    assert (ours - exact).abs().max() <= (F.layer_norm(values, (1500,)) - exact).abs().max() * 1.1


def test_places_beyond_32_bits(monkeypatch):
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    check(torch.randn(30, 7), torch.rand(30, 7) < 0.5, 1, *torch.randn(2, 7))
