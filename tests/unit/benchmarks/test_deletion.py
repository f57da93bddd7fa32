from __future__ import annotations

import pytest
import torch

from benchmarks.deletion import verifier

EXACT = "float32"


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    x, mask = torch.randn(5, 6), torch.rand(5, 6) < 0.5
    mask[:, 0] = True
    return torch.where(mask, x, float("nan")), mask


@pytest.mark.parametrize("dim", [0, 1])
def test_a_right_reduction_passes_and_a_wrong_one_does_not(dim: int) -> None:
    x, mask = operands()
    mask[0] = True
    x = torch.where(mask & x.isnan(), 1.0, x)
    right = torch.stack(
        [line[mark].mean() for line, mark in zip(x.movedim(dim, 1), mask.movedim(dim, 1), strict=True)]
    )
    verify = verifier(lambda left, _: left.mean(), x, mask, (dim,), EXACT)
    verify(right)
    with pytest.raises(AssertionError, match="the value"):
        verify(right + 0.01)


def test_gradients_are_compared_and_must_be_zero_where_nothing_is_specified() -> None:
    x, mask = operands()
    weight = torch.randn(5)
    count = mask.sum(1, keepdim=True)
    result = torch.where(mask, x, 0).sum(1) / count[:, 0]
    gradient = torch.where(mask, weight[:, None] / count, 0)
    verify = verifier(lambda left, _: left.mean(), x, mask, (1,), EXACT, weight)
    verify((result, gradient))
    with pytest.raises(AssertionError, match="the gradient"):
        verify((result, gradient * 2))
    with pytest.raises(AssertionError, match="unspecified entry is not 0"):
        verify((result, torch.where(mask, gradient, 1e-9)))
