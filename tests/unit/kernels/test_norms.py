"""masked_norm and segment_norm: PyTorch's norm of what is specified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels import use_kernels
from tests.unit.kernels.masks import MaskedSuite
from tests.unit.kernels.segments import SegmentSuite, rows_of

ONE = torch.ones((), dtype=torch.float64)


class TestMaskedNorm(MaskedSuite):
    kernel = "masked_norm"
    variants: tuple[tuple[float], ...] = ((2.0,), (1.0,), (math.inf,), (3.0,))

    def alone(self, x: Tensor, ord: float) -> tuple[Tensor, Tensor]:
        return torch.linalg.vector_norm(x, ord), ONE

    def is_refused(self, shape: Sequence[int], where: Any, variant: tuple[float]) -> bool:
        return bool(shape) and variant[0] == math.inf and any(shape[d] == 0 for d in where[1])


class TestNumberOfNonzeros(TestMaskedNorm):
    variants = ((0.0,),)
    derivable = False


class TestSegmentNorm(SegmentSuite):
    kernel = "segment_norm"
    variants = tuple((p,) for p in (2.0, 1.0, 3.0, 0.5, -1.0, math.inf, -math.inf))
    widens = True

    def alone(self, x: Tensor, ord: float) -> Tensor:
        return torch.linalg.vector_norm(x, ord)

    def special(self) -> list[list[float]]:  # sums of powers of infinities differ by their order
        return [row for row in super().special() if row[:2] != [math.inf, -math.inf]]


class TestNumberOfNonzerosOfSegments(TestSegmentNorm):
    variants = ((0.0,),)
    derivable = False


@pytest.mark.parametrize("ord", [-1.0, 0.5])
def test_negative_and_fractional_orders_are_torchs(ord: float) -> None:
    values, mask = torch.randn(5, 9), torch.rand(5, 9) < 0.5
    mask[:, 0] = True
    found, _ = kernels.masked_norm(torch.where(mask, values, math.nan), mask, (1,), False, ord)
    alone = [torch.linalg.vector_norm(x[m], ord) for x, m in zip(values, mask, strict=True)]
    torch.testing.assert_close(found, torch.stack(alone))


def test_ties_share_the_gradient() -> None:
    values = torch.tensor([2.0, -2.0, 1.0, 0.0, 0.0, 3.0], requires_grad=True)
    for body in ("reference", "cpu"):
        with use_kernels(body):
            for ord, slope in ((math.inf, [0.5, -0.5, 0, 0, 0, 1]), (-math.inf, [0, 0, 1, 0, 0, 0])):
                result = kernels.segment_norm(values, rows_of([3, 3]), ord)
                assert torch.autograd.grad(result.sum(), values)[0].tolist() == slope


def test_the_second_derivative_at_a_zero_of_a_vector() -> None:
    """That of the Euclidean norm is 1 / norm there, not 0."""
    values = torch.tensor([3.0, 0.0, 4.0], dtype=torch.float64, requires_grad=True)
    for body in ("reference", "cpu"):
        with use_kernels(body):
            result = kernels.segment_norm(values, rows_of([3]), 2.0)
            (slope,) = torch.autograd.grad(result, values, create_graph=True)
        (bend,) = torch.autograd.grad(slope[1], values)
        torch.testing.assert_close(bend, torch.tensor([0, 0.2, 0], dtype=torch.float64))


def test_the_gradient_of_complex_numbers() -> None:
    order = torch.randperm(8)
    for ord in (1.0, 2.0, 3.0, math.inf):
        x = (torch.arange(8) * (1 - 2j)).requires_grad_()
        found = kernels.segment_norm(x, rows_of([3, 1, 4], order), ord)
        parts = [x[order[a:b]] for a, b in ((0, 3), (3, 4), (4, 8))]
        wanted = torch.stack([torch.linalg.vector_norm(part, ord) for part in parts])
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (found, wanted)))
