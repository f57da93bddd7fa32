"""Softmax and logsumexp, of what a mask or segments hold: PyTorch's on each group of entries alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad import kernels
from maskgrad.kernels.softmax import cpu as loops
from tests.unit.kernels.masks import MaskedSuite
from tests.unit.kernels.segments import SegmentSuite

ROUNDING = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
inf, nan = math.inf, math.nan
#: A mixture of what an exponential does not survive.
SPECIAL = [
    [-inf, -inf, -inf], [inf, 1.0, 0.0], [1.0, 0.0, inf], [nan, 1.0, 2.0], [1.0, 2.0, nan], [inf, nan, 0.0],
    [inf, inf, 0.0], [-inf, 1.0, 2.0], [-inf, nan, 0.0], [-inf, -inf, inf], [3e4, -3e4, 0.0], [-6e4, -6e4, -6e4],
]  # fmt: skip


class TestMaskedSoftmax(MaskedSuite):
    kernel = "masked_softmax"
    variants = ((False,), (True,))
    per_entry = True
    one_dim = True
    keeps = False
    rounding = ROUNDING
    slack = 20.0

    def operands(self, shape: Sequence[int], where: Any, variant: Any) -> tuple[Tensor, ...]:
        return (torch.randn(shape) * 3,)

    def alone(self, x: Tensor, logarithm: bool) -> Tensor:
        return (torch.log_softmax if logarithm else torch.softmax)(x, 0)

    def nothing(self, dtype: torch.dtype, logarithm: bool) -> tuple[float, ...]:  # type: ignore[override]
        return (-inf if logarithm else 0.0,)

    def special(self) -> list[list[float]]:
        return SPECIAL

    def call(self, operands: Sequence[Tensor], where: Any, variant: tuple[Any, ...]) -> Tensor:
        """With any value at unspecified entries, which are filled, as by all who read a result."""
        mask, (dim,) = where
        found = kernels.masked_softmax(*operands, mask, dim, *variant)
        return kernels.filled(found, mask, *self.nothing(found.dtype, *variant))

    test_mistakes_in_the_mask_are_named = None  # the rules give a mask of this shape


class TestMaskedLogsumexp(MaskedSuite):
    kernel = "masked_logsumexp"
    rounding = ROUNDING
    slack = 20.0
    complex = True

    def by_torch(self, operands: Sequence[Tensor], where: Any, variant: tuple[Any, ...]) -> bool:
        return True

    def alone(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.logsumexp(x, 0), torch.ones((), dtype=torch.float64)

    def nothing(self, dtype: torch.dtype) -> tuple[float, ...]:
        return (-inf,)

    def special(self) -> list[list[float]]:
        return SPECIAL


class TestSegmentSoftmax(SegmentSuite):
    kernel = "segment_softmax"
    variants = ((False,), (True,))
    per_entry = True
    rounding = ROUNDING
    slack = 50.0

    def operands(self, shape: Sequence[int], where: Any, variant: Any) -> tuple[Tensor, ...]:
        return (torch.randn(shape) * 5,)

    alone = TestMaskedSoftmax.alone

    def special(self) -> list[list[float]]:
        return SPECIAL


class TestSegmentLogsumexp(SegmentSuite):
    kernel = "segment_logsumexp"
    widens = True
    complex = True
    slack = 20.0

    def alone(self, x: Tensor) -> Tensor:
        return torch.logsumexp(x, 0)

    def nothing(self, dtype: torch.dtype) -> tuple[float, ...]:
        return (-inf,)

    def special(self) -> list[list[float]]:
        return SPECIAL


def test_rows_in_pieces_are_reduced_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    values, mask = torch.randn(50, 30, 7), torch.rand(50, 30, 7) < 0.5
    mask[11] = False
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for dim in ((1,), (2,), (-1, 1), (0,), (0, 1, 2)):
            for keepdim in (False, True):
                whole, present = loops.masked_logsumexp(values.to(dtype), mask, dim, keepdim)
                with monkeypatch.context() as patch:
                    patch.setattr(loops, "PIECE", 1000)
                    again, _ = loops.masked_logsumexp(values.to(dtype), mask, dim, keepdim)
                torch.testing.assert_close(whole, again)
                assert torch.equal(present, mask.any(dim, keepdim))
                filled = torch.where(mask, values.to(dtype), -torch.inf)
                exact = torch.logsumexp(filled.double(), dim, keepdim)
                torch.testing.assert_close(whole, exact.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_softmax_in_the_memory_of_the_fill_is_that_in_new_memory(dtype: torch.dtype) -> None:
    """PyTorch reads all of a slice before it writes an entry of it, which its documentation does not promise."""
    for shape in ((3, 5), (40, 1030), (7, 33, 5), (2, 4097, 3), (1, 70_001), (300, 16)):
        values, mask = torch.randn(shape).to(dtype) * 3, torch.rand(shape) < 0.7
        for dim in range(len(shape)):
            for logarithm, function in ((False, torch.softmax), (True, torch.log_softmax)):
                found = kernels.masked_softmax(values, mask, dim, logarithm)
                expected = function(torch.where(mask, values, -torch.inf), dim)
                torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_numbers_without_a_softmax_are_refused_as_by_torch(dtype: torch.dtype) -> None:
    x = mg.masked(torch.ones(3, 4).to(dtype), torch.rand(3, 4) < 0.7)
    for function in (torch.softmax, torch.log_softmax):
        with pytest.raises(RuntimeError, match="not implemented for"):
            function(x, 1)


def test_the_softmax_is_no_logarithm_unless_asked_for() -> None:
    values, mask = torch.tensor([0.0, 0.0, 5.0]), torch.tensor([True, True, False])
    assert kernels.masked_softmax(values, mask, 0).tolist() == [0.5, 0.5, 0.0]
