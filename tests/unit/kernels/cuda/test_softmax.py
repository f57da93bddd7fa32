"""masked_softmax and masked_logsumexp for CUDA against the reference, and their derivatives."""

from __future__ import annotations

import pytest
import torch

from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cuda, reference
from tests.unit.kernels.layouts import SHAPES_AND_DIMS, layouts

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
ROUNDING = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

pytestmark = pytest.mark.usefixtures("device")


def agree(name, *args):
    found, expected = getattr(cuda, name)(*args), getattr(reference, name)(*args)
    first = expected[0] if isinstance(expected, tuple) else expected
    tolerance = ROUNDING[first.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * 10, equal_nan=True)
    return first


def check_softmax(values, mask, dim, logarithm):
    soft = agree("masked_softmax", values, mask, dim, logarithm)
    grad = torch.randn(values.shape).to(values.dtype).masked_fill(~mask, torch.nan)
    agree("masked_softmax_backward", grad, soft, mask, dim, logarithm)


def check_logsumexp(values, mask, dim):
    result = agree("masked_logsumexp", values, mask, dim, True)
    agree("masked_logsumexp", values, mask, dim, False)
    grad = torch.randn(result.shape).to(values.dtype)
    agree("masked_logsumexp_backward", grad, values, result, mask)


@pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
def test_any_dimensions(shape, dim):
    values, mask = torch.randn(shape), torch.rand(shape) < 0.6
    if dim or shape:
        check_logsumexp(values, mask, dim)
    for d in dim:
        check_softmax(values, mask, d, False)
        check_softmax(values, mask, d, True)


@pytest.mark.parametrize("garbage", oracles.GARBAGE)
@pytest.mark.parametrize("dtype", FLOATS)
def test_garbage_under_the_mask_is_never_added(dtype, garbage):
    mask = torch.rand(17, 33) < 0.5
    mask[3], mask[:, 5] = False, False
    values = oracles.soiled(torch.randn(17, 33).to(dtype), mask, garbage)
    for dim in (0, 1):
        check_softmax(values, mask, dim, dtype == torch.float32)
        check_logsumexp(values, mask, (dim,))


def test_what_is_not_finite_stays_in_its_slice():
    values = torch.randn(7, 5)
    for row, strange in enumerate([torch.nan, torch.inf, -torch.inf, 1e38]):
        values[row, 2] = strange
    values[4], values[5, :2] = -torch.inf, torch.tensor([torch.nan, torch.inf])
    mask = torch.rand(7, 5) < 0.8
    mask[:, 2], mask[5] = True, True
    check_softmax(values, mask, 1, False)
    check_softmax(values, mask, 1, True)
    agree("masked_logsumexp", values, mask, (1,), False)


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout, device):
    values, mask = (x.to(device) for x in layouts()[layout])
    for dim in (1, -1):
        check_softmax(values, mask, dim, False)
    for dim in ((0, 2),):
        check_logsumexp(values, mask, dim)


def test_slices_longer_than_a_tile():
    values, mask = torch.randn(3, 2500), torch.rand(3, 2500) < 0.5
    check_softmax(values, mask, 1, False)
    check_logsumexp(values, mask, (0, 1))


def test_places_beyond_32_bits(monkeypatch):
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    values, mask = torch.randn(30, 7), torch.rand(30, 7) < 0.5
    check_softmax(values, mask, 0, True)
    check_logsumexp(values, mask, (1,))
