"""Softmax and logsumexp, of what a mask or segments hold: PyTorch's on each group of entries alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels.softmax.cpu import _is_composed
from tests.unit.kernels.bodies import cpu
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

    def by_torch(self, operands: Sequence[Tensor], where: Any, variant: tuple[Any, ...]) -> bool:
        return _is_composed(operands[0], where[1][0])


class TestMaskedLogsumexp(MaskedSuite):
    kernel = "masked_logsumexp"
    rounding = ROUNDING
    slack = 20.0
    complex = True

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


def test_the_extremes_of_the_exponential() -> None:
    for dtype, lowest in ((torch.float32, -103.0), (torch.float64, -745.0)):
        values = torch.linspace(lowest, 0, 100_003, dtype=dtype)
        mask = torch.ones_like(values, dtype=torch.bool)
        result = cpu.masked_logsumexp_backward(
            torch.ones(1, dtype=dtype), values, torch.zeros(1, dtype=dtype), mask
        )
        expected = values.double().exp()
        unit = torch.finfo(dtype).eps
        normal = expected > torch.finfo(dtype).tiny
        assert ((result.double() - expected).abs() / expected)[normal].max() < 1.1 * unit
        subnormal = torch.finfo(dtype).tiny * unit
        assert (result.double() - expected).abs()[~normal].max() <= 1.5 * subnormal


def test_the_softmax_is_no_logarithm_unless_asked_for() -> None:
    values, mask = torch.tensor([0.0, 0.0, 5.0]), torch.tensor([True, True, False])
    assert kernels.masked_softmax(values, mask, 0).tolist() == [0.5, 0.5, 0.0]
