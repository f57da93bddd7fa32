"""masked_filling: torch.where, entry for entry and bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad import kernels
from maskgrad.kernels import use_kernels
from maskgrad.kernels.filling import LEAST
from maskgrad.semantics.entries import Entries, fill
from tests.unit.kernels.deletion import GARBAGE, run
from tests.unit.kernels.masks import LAYOUTS, MaskedSuite

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
]  # fmt: skip


class TestMaskedFilling(MaskedSuite):
    """Each entry is its own; how they are grouped does not matter."""

    kernel = "masked_filling"
    variants = ((0.0,), (-7.0,))
    per_entry = True
    keeps = False
    complex = True

    def takes(self, shape: tuple[int, ...], dim: tuple[int, ...]) -> bool:
        return dim == tuple(range(len(shape)))

    def call(self, operands: Sequence[Tensor], where: Any, variant: tuple[Any, ...]) -> Any:
        return kernels.masked_filling(*operands, where[0], *variant)

    def alone(self, x: Tensor, filler: float) -> Tensor:
        return x

    test_mistakes_in_the_mask_are_named = None  # it is called where masks were looked at

    def nothing(self, dtype: torch.dtype, filler: float) -> tuple[float, ...]:  # type: ignore[override]
        return (filler,)


def same(found: Tensor, expected: Tensor) -> None:
    """Bit for bit but for NaN, and where torch.empty_like puts it."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True, check_stride=False)
    if found.is_floating_point():
        assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_dtype_length_and_filler(dtype: torch.dtype) -> None:
    fillers: list[Any] = [False, True] if dtype == torch.bool else [0, 1, 7]
    fillers += [0.1, -0.0, math.inf, -math.inf, math.nan, 1e38, 1e-300] if dtype.is_floating_point else []
    with use_kernels("cpu"):
        for size in [0, 1, 2, 7, 31, 64, 101, 16_384, 16_385, 50_021]:
            values = (torch.randn(size) * 50).to(dtype)
            mask = torch.rand(size) < 0.5
            for filler in fillers if size < 100 else fillers[:1]:
                for known in (mask, torch.ones_like(mask), torch.zeros_like(mask)):
                    same(kernels.masked_filling(values, known, filler), torch.where(known, values, filler))
        if dtype.is_floating_point:
            for garbage in GARBAGE:
                values, mask = torch.full((100,), garbage).to(dtype), torch.rand(100) < 0.5
                same(kernels.masked_filling(values, mask, 3.0), torch.where(mask, values, 3.0))


@pytest.mark.parametrize("filler", [-(2**63), 2**63 - 1, 2**53 + 1])
def test_large_integers_are_not_rounded(filler: int) -> None:
    values, mask = torch.full((50,), 2**62 + 1), torch.rand(50) < 0.5
    with use_kernels("cpu"):
        same(kernels.masked_filling(values, mask, filler), torch.where(mask, values, filler))


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_results_lie_where_pytorch_puts_them(layout: str) -> None:
    shape, lay, lay_mask = LAYOUTS[layout]
    values, mask = lay(torch.randn(shape)), lay_mask(torch.rand(shape) < 0.5)
    found = run("cpu", "masked_filling", values, mask, -7.0)
    assert torch.equal(found, torch.where(mask, values, -7.0))
    assert found.stride() == torch.empty_like(values).stride()
    assert found.data_ptr() != values.data_ptr()


@pytest.mark.parametrize(
    "shapes", [((LEAST // 8, 8),) * 2, ((8,), (LEAST // 8, 8)), ((LEAST // 8, 8), (LEAST // 8, 1))]
)
def test_large_operands_are_filled_as_small_ones_are(shapes):
    values, mask = torch.randn(shapes[0], requires_grad=True), torch.rand(shapes[1]) < 0.5
    found, expected = fill(values, mask, 1), torch.where(mask, values, 1.0)
    assert torch.equal(found, expected)
    (ours,), (theirs,) = (torch.autograd.grad(y.square().sum(), values) for y in (found, expected))
    torch.testing.assert_close(ours, theirs)
    whole = torch.ones(LEAST, dtype=torch.bool)
    assert fill(Entries(torch.zeros(LEAST, dtype=torch.int64), ~whole), ~whole, 1.0).eq(1).all()


@pytest.mark.parametrize("width", [2, 3, 768, 4_097, 16_383])
def test_a_row_that_repeats_through_a_long_run(width):
    rows = 120_000 // width
    values, mask = torch.randn(2, 1, width).expand(2, rows, width), torch.ones(2, rows, 1, dtype=torch.bool)
    mask[1, rows // 2] = False
    same(
        run("cpu", "masked_filling", values, mask.expand(2, rows, width), 0),
        torch.where(mask, values, 0),
    )
    leaf, weight = torch.randn(2, rows, width, requires_grad=True), torch.randn(2, width)
    mg.masked(leaf, mask).sum(1).backward(weight)
    assert torch.equal(leaf.grad, torch.where(mask, weight[:, None], 0).expand(2, rows, width))


def test_more_axes_than_a_loop_walks():
    """Five axes that do not merge: gaps in what is read and in the mask."""
    values = torch.randn(5, 3, 4, 6, 7)[:, :2, 1:3, ::2, ::3]
    mask = (torch.rand(values.shape) < 0.5).permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0)
    assert torch.equal(run("cpu", "masked_filling", values, mask, 2.0), torch.where(mask, values, 2.0))
