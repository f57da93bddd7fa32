"""Logsumexp of what a mask holds: PyTorch's on each group of entries alone; and softmax."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from maskgrad import kernels
from tests.unit.kernels.masks import MaskedSuite
from tests.unit.kernels.suite import inf


class TestMaskedLogsumexp(MaskedSuite):
    kernel = "masked_logsumexp"
    slack = 20.0
    by_torch = True


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5), (40, 1030), (7, 33, 5), (2, 4097, 3), (1, 70_001), (300, 16)])
def test_a_softmax_in_the_memory_of_the_fill_is_that_in_new_memory(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """PyTorch reads all of a slice before it writes an entry of it, which its documentation does not promise."""
    values, mask = torch.randn(shape).to(dtype) * 3, torch.rand(shape) < 0.7
    for dim in range(len(shape)):
        for logarithm, function in (((), torch.softmax), ((True,), torch.log_softmax)):
            found = kernels.masked_softmax(values, mask, dim, *logarithm)
            expected = function(torch.where(mask, values, -inf), dim)
            torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_numbers_without_a_softmax_are_refused_as_by_torch(dtype: torch.dtype) -> None:
    x = mg.masked(torch.ones(3, 4).to(dtype), torch.rand(3, 4) < 0.7)
    for function in (torch.softmax, torch.log_softmax):
        with pytest.raises(RuntimeError, match="not implemented for"):
            function(x, 1)
