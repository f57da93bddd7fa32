"""masked_norm and segment_norm: what the laws do not draw."""

from __future__ import annotations

import math

import pytest
import torch

from maskgrad import kernels
from tests.unit.kernels.segments import rows_of


@pytest.mark.parametrize("ord", [-1.0, 0.5])
def test_negative_and_fractional_orders_are_torchs(ord: float) -> None:
    values, mask = torch.randn(5, 9), torch.rand(5, 9) < 0.5
    mask[:, 0] = True
    found, _ = kernels.masked_norm(torch.where(mask, values, math.nan), mask, (1,), False, ord)
    alone = [torch.linalg.vector_norm(x[m], ord) for x, m in zip(values, mask, strict=True)]
    torch.testing.assert_close(found, torch.stack(alone))


def test_the_second_derivative_at_a_zero_of_a_vector() -> None:
    """That of the Euclidean norm is 1 / norm there, not 0."""
    values = torch.tensor([3.0, 0.0, 4.0], dtype=torch.float64, requires_grad=True)
    result = kernels.segment_norm(values, rows_of([3]), 2.0)
    (slope,) = torch.autograd.grad(result, values, create_graph=True)
    (bend,) = torch.autograd.grad(slope[1], values)
    torch.testing.assert_close(bend, torch.tensor([0, 0.2, 0], dtype=torch.float64))


@pytest.mark.parametrize("ord", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.own_dtype("bfloat16", "float16")
def test_the_gradient_of_complex_numbers(ord: float) -> None:
    order, x = torch.randperm(8), (torch.arange(8) * (1 - 2j)).requires_grad_()
    found = kernels.segment_norm(x, rows_of([3, 1, 4], order), ord)
    wanted = torch.stack([torch.linalg.vector_norm(part, ord) for part in x[order].split([3, 1, 4])])
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (found, wanted)))
