"""masked_filling for CUDA against torch.where, bit for bit."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.kernels import oracles
from tests.unit.kernels.bodies import cuda
from tests.unit.kernels.layouts import layouts

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("device")


def check(values, mask, filler):
    found, expected = cuda.masked_filling(values, mask, filler), torch.where(mask, values, filler)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True, check_stride=False)
    assert found.stride() == torch.empty_like(values).stride()
    if found.is_floating_point():
        assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_dtype_and_length(dtype):
    for size in (0, 1, 31, 2049):
        values, mask = (torch.randn(size) * 50).to(dtype), torch.rand(size) < 0.5
        for filler in (False, True) if dtype == torch.bool else (0, 1, 7):
            check(values, mask, filler)


@pytest.mark.parametrize("filler", [0.0, -0.0, 0.1, math.inf, -math.inf, math.nan, 1e38, 1e-300])
@pytest.mark.parametrize("dtype", DTYPES[:4])
def test_a_filler_keeps_its_digits(dtype, filler):
    check(torch.randn(50).to(dtype), torch.rand(50) < 0.5, filler)


@pytest.mark.parametrize("filler", [-(2**63), 2**63 - 1, 2**53 + 1])
def test_large_integers_are_not_rounded(filler):
    check(torch.full((50,), 2**62 + 1), torch.rand(50) < 0.5, filler)


@pytest.mark.parametrize("garbage", oracles.GARBAGE)
def test_garbage_under_the_mask_disappears_and_above_it_stays(garbage):
    check(torch.full((100,), garbage), torch.rand(100) < 0.5, 3.0)


@pytest.mark.parametrize("layout", list(layouts()))
def test_any_strides(layout, device):
    values, mask = (x.to(device) for x in layouts()[layout])
    check(values, mask, -7.0)
    check(torch.randn(()), torch.tensor(True), 2.0)


def test_places_beyond_32_bits(monkeypatch):
    monkeypatch.setattr("maskgrad.kernels.cuda.compiler._NARROW", 10)
    check(torch.randn(30, 7), torch.rand(30, 7) < 0.5, 1.0)
