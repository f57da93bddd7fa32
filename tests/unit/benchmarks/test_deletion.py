from __future__ import annotations

import pytest
import torch

from benchmarks.deletion import verifier


@pytest.mark.parametrize("dim", [0, 1])
def test_wrong_values_and_gradients_and_any_at_unspecified_entries_are_told(dim: int) -> None:
    mask = torch.rand(6, 6) < 0.5
    mask[0], mask[:, 0] = True, True
    x, weight = torch.where(mask, torch.randn(6, 6), float("nan")), torch.randn(6)
    count = mask.sum(dim, keepdim=True)
    result = torch.where(mask, x, 0).sum(dim) / count.squeeze(dim)
    gradient = torch.where(mask, weight.unsqueeze(dim) / count, 0)
    verify = verifier(lambda left, _: left.mean(), x, mask, (dim,), "float32", weight)
    verify((result, gradient))
    for wrong, words in (
        ((result + 0.01, gradient), "the value"),
        ((result, gradient * 2), "the gradient"),
        ((result, torch.where(mask, gradient, 1e-9)), "unspecified entry is not 0"),
    ):
        with pytest.raises(AssertionError, match=words):
            verify(wrong)
