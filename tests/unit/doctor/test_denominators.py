"""A step that passes parts of its batch to its model: other orders make other parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.errors import ExaminationError

Batch = dict[str, Tensor]
MASK = torch.arange(5) < torch.tensor([5, 1, 3, 2, 4, 4])[:, None]
LAYER = nn.Linear(3, 1)
X = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7)[:, None, None]


def _parts(size: int) -> Callable[[Batch], Tensor]:
    """A mean of means, right for equal parts of equally long samples, in any order."""

    def step(b: Batch) -> Tensor:
        found = torch.zeros(())
        for x, mask in zip(b["x"].split(size), b["mask"].split(size), strict=True):
            found = found + LAYER(x)[mask].square().mean() / 3
        return found

    return step


@pytest.mark.parametrize(
    ("size", "lengths", "words"),
    [
        (6, MASK, "write the loop over the parts as the step"),
        (1, MASK, "sample by sample; write the loop over"),
        (2, MASK[3].expand(6, 5), r"parts of as many samples and real entries.*samples of different"),
    ],
)
def test_a_step_whose_parts_cannot_differ_is_refused(size: int, lengths: Tensor, words: str) -> None:
    with pytest.raises(ExaminationError, match=words):
        mg.testing.assert_accumulation_invariant(_parts(size), {"x": X, "mask": lengths})


def test_parts_of_other_numbers_of_samples_are_found() -> None:
    with pytest.raises(AssertionError, match="splits the batch"):  # of 2, 2 and 1
        mg.testing.assert_accumulation_invariant(_parts(2), {"x": X[:5], "mask": MASK[3].expand(5, 5)})
