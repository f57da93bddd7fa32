from __future__ import annotations

import pytest
import torch

from benchmarks.deletion import as_lines, verifier

EXACT = "float32"


def test_lines_run_along_the_dimensions() -> None:
    t = torch.arange(24).reshape(2, 3, 4)
    assert as_lines(t, (1,)).tolist()[0] == [0, 4, 8]
    assert as_lines(t, (0, 2)).tolist()[1] == [4, 5, 6, 7, 16, 17, 18, 19]
    assert as_lines(t, (0, 1, 2)).shape == (1, 24)


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


def test_unspecified_entries_of_a_result_do_not_matter() -> None:
    x, mask = operands()
    right = torch.where(mask, x, float("-inf")).softmax(1)
    verify = verifier(lambda left, _: left.softmax(0), x, mask, (1,), EXACT)
    verify(torch.where(mask, right, 1e30))
    with pytest.raises(AssertionError, match="specified entries"):
        verify(right * 1.1)


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


def test_where_in_the_line_an_entry_was_is_known() -> None:
    x, mask = operands()
    scale = torch.arange(6.0)
    verify = verifier(lambda left, mark: (left * scale[mark]).sum(), x, mask, (1,), EXACT)
    verify((torch.where(mask, x, 0) * scale).sum(1))
