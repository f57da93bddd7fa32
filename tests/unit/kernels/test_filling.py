"""masked_filling: torch.where, entry for entry and bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels.filling import LEAST
from maskgrad.semantics.entries import Entries, fill
from tests.unit.kernels.masks import LAYOUTS, MaskedSuite, permuted
from tests.unit.kernels.suite import DTYPES, INTEGERS, inf, nan, run


class TestMaskedFilling(MaskedSuite):
    """Each entry is its own; how they are grouped does not matter."""

    kernel = "masked_filling"
    variants = ((0.0,), (-7.0,))
    per_entry = True
    keeps = False

    def call(self, operands: Sequence[Tensor], where: Any, variant: tuple[Any, ...]) -> Any:
        return kernels.masked_filling(*operands, where[0], *variant)

    test_mistakes_in_the_mask_are_named = None  # it is called where masks were looked at


def check(values: Tensor, mask: Tensor, filler: Any) -> None:
    """Bit for bit but for NaN, and where torch.empty_like puts it."""
    found, expected = run("cpu", "masked_filling", values, mask, filler), torch.where(mask, values, filler)
    for result in (found, kernels.filled(values, mask, filler)):
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True, check_stride=False)
        if result.is_floating_point():
            assert torch.equal(result.signbit(), expected.signbit())
    assert found.stride() == torch.empty_like(values).stride()
    assert not values.numel() or found.data_ptr() != values.data_ptr()


@pytest.mark.parametrize("dtype", [*DTYPES, *INTEGERS])
def test_any_dtype_length_and_filler(dtype: torch.dtype) -> None:
    fillers: list[Any] = [False, True] if dtype == torch.bool else [0, 1, 7]
    fillers += [0.1, -0.0, inf, -inf, nan, 1e38, 1e-300] if dtype.is_floating_point else []
    fillers += [-(2**63), 2**63 - 1, 2**53 + 1] if dtype == torch.int64 else []
    for size in [0, 1, 2, 7, 31, 64, 101, 16_384, 16_385, 50_021]:
        values, mask = (torch.randn(size) * 50).to(dtype), torch.rand(size) < 0.5
        for filler in fillers if size < 100 else fillers[:1]:
            for known in (mask, torch.ones_like(mask), torch.zeros_like(mask)):
                check(values, known, filler)


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_results_lie_where_pytorch_puts_them(layout: str) -> None:
    shape, lay, lay_mask = LAYOUTS[layout]
    check(lay(torch.randn(shape)), lay_mask(torch.rand(shape) < 0.5), -7.0)


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
    found = run("cpu", "masked_filling", values, mask.expand(values.shape), 0)
    assert torch.equal(found, torch.where(mask, values, 0))


def test_more_axes_than_a_loop_walks():
    """Five axes that do not merge: gaps in what is read and in the mask."""
    values = torch.randn(5, 3, 4, 6, 7)[:, :2, 1:3, ::2, ::3]
    check(values, permuted(4, 3, 2, 1, 0)(torch.rand(values.shape) < 0.5), 2.0)
