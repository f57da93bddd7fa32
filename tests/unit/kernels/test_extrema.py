"""masked_extremum, masked_position and segment_extremum: PyTorch's extrema of what is specified, exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from maskgrad.kernels.extrema import lowest
from tests.unit.kernels.deletion import GARBAGE
from tests.unit.kernels.masks import MaskedSuite, soiled
from tests.unit.kernels.segments import SegmentSuite

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
EXACT = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
inf, nan = math.inf, math.nan
ONE = torch.ones((), dtype=torch.float64)


def extremum(x: Tensor, largest: bool) -> Tensor:
    return x.amax(0) if largest else x.amin(0)


class TestMaskedExtremum(MaskedSuite):
    """With its gradient, which is shared among equals, and whether there is an entry."""

    kernel = "masked_extremum"
    variants = ((True,), (False,))
    rounding = EXACT
    integers = INTEGERS
    special_numbers = (0.0, -0.0, inf, -inf)

    def operands(self, shape: Sequence[int], where: Any, variant: Any) -> tuple[Tensor, ...]:
        return (torch.randn(shape).mul(3).round(),)

    def smooth(self, shape: Sequence[int], where: Any, variant: Any) -> tuple[Tensor, ...]:
        return (torch.randn(shape),)

    def alone(self, x: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
        return extremum(x, largest), ONE

    def nothing(self, dtype: torch.dtype, largest: bool) -> tuple[float, ...]:  # type: ignore[override]
        return (lowest(dtype, largest),)

    def result_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def is_refused(self, shape: Sequence[int], where: Any, variant: Any) -> bool:
        return bool(shape) and any(shape[d] == 0 for d in where[1])

    def test_complex_numbers_have_none(self) -> None:
        values, mask = torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.bool)
        with pytest.raises(RuntimeError, match="extrema are not defined for complex"):
            kernels.masked_extremum(values, mask, (0,), False, True)


class TestMaskedPosition(MaskedSuite):
    """The first one that is largest (or smallest), and whether there is one."""

    kernel = "masked_position"
    variants = ((True,), (False,))
    integers = INTEGERS
    derivable = False
    one_dim = True
    special_numbers = (0.0, -0.0, nan, inf, -inf)
    nans = True
    operands = TestMaskedExtremum.operands

    def beside(self, where: Any) -> tuple[Tensor, ...]:
        mask, (dim,), *_ = where
        return (torch.ones_like(mask, dtype=torch.int64).cumsum(dim) - 1,)

    def alone(self, x: Tensor, at: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
        best = extremum(x, largest)
        return at[((x == best) | (x.isnan() & best.isnan()))][0].double(), ONE

    def result_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.int64

    is_refused = TestMaskedExtremum.is_refused


class TestSegmentExtremum(SegmentSuite):
    """Without a gradient."""

    kernel = "segment_extremum"
    variants = ((True,), (False,))
    rounding = EXACT
    derivable = False
    nonempty = True  # the result of an empty one is any number
    integers = (torch.int32, torch.int64)
    nans = True

    def alone(self, x: Tensor, largest: bool) -> Tensor:
        return extremum(x, largest)

    def result_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_equals_share_and_nan_takes_all(body: str, dtype: torch.dtype) -> None:
    values = torch.tensor([[2.0, 2, 1, 2], [nan, 1, 2, 2], [-0.0, 0, -1, 5]], dtype=dtype, requires_grad=True)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0]]).bool()
    with use_kernels(body):
        best, _ = kernels.masked_extremum(values, mask, (1,), False, True)
        best.sum().backward()
    expected = torch.tensor([[0.5, 0.5, 0, 0], [nan, nan, nan, 0], [0.5, 0.5, 0, 0]], dtype=dtype)
    torch.testing.assert_close(values.grad, expected, equal_nan=True)


@pytest.mark.parametrize("body", ["reference", "cpu"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_an_infinite_winner_shares_with_nobody_under_the_mask(
    body: str, largest: bool, garbage: float
) -> None:
    """Under the mask lies what never wins, which is the winner here; PyTorch's own derivative would count it."""
    worst = -inf if largest else inf
    mask = torch.tensor([[True, False, False], [True, True, False], [True, True, True], [False] * 3])
    rows = torch.tensor([[worst, 5, 5], [worst, worst, 5], [1.0, 2, 2], [0, 0, 0]])
    values = soiled(rows, mask, garbage)
    half = [0, 0.5, 0.5] if largest else [1, 0, 0]
    with use_kernels(body):
        for kept, expected in ((rows, [[1, 0, 0], [0.5, 0.5, 0], half, [0, 0, 0]]), (rows[2:3], [half])):
            x = (values if kept is rows else values[2:3]).clone().requires_grad_()
            m = mask if kept is rows else mask[2:3]
            best, present = kernels.masked_extremum(x, m, (1,), False, largest)
            assert present.tolist() == m.any(1).tolist()
            (slope,) = torch.autograd.grad(best[present].sum(), x)
            assert slope.tolist() == expected


def test_integers_beyond_floats_are_told_apart() -> None:
    values, mask = torch.tensor([[2**62 + 1, 2**62, 3]]), torch.tensor([[True, True, False]])
    assert kernels.masked_extremum(values, mask, (1,), False, True)[0].item() == 2**62 + 1
    assert kernels.masked_extremum(values, mask, (1,), False, False)[0].item() == 2**62


@pytest.mark.parametrize("position", [0, 77, 9_983])
def test_nan_is_the_extremum_wherever_it_stands_in_a_long_column(position: int) -> None:
    values, mask = torch.randn(9_984, 3), torch.ones(9_984, 3, dtype=torch.bool)
    values[position, 1], values[-1, 0] = nan, inf
    best, _ = kernels.masked_extremum(values, mask, (0,), False, True)
    place, _ = kernels.masked_position(values, mask, 0, False, True)
    assert best.isnan().tolist() == [False, True, False]
    assert place.tolist() == values.argmax(0).tolist()
