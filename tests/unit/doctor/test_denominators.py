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


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 5, 3, generator=generator) * torch.arange(1, 7)[:, None, None]
    return {"x": x, "mask": MASK}


def _parts(divide: Callable[[Batch, Batch], Tensor], size: int = 2) -> Callable[[Batch], Tensor]:
    def step(b: Batch) -> Tensor:
        found = torch.zeros(())
        for rows in torch.arange(len(b["x"])).split(size):
            part = {key: held[rows] for key, held in b.items()}
            errors = LAYER(part["x"]).squeeze(-1).square().masked_fill(~part["mask"], 0.0)
            found = found + errors.sum() / divide(b, part)
        return found

    return step


def test_a_step_without_parts_is_refused() -> None:
    with pytest.raises(ExaminationError, match="write the loop over the parts as the step"):
        mg.testing.assert_accumulation_invariant(_parts(lambda *_: MASK.sum(), size=6), _batch())


def test_parts_of_one_sample_are_refused_as_no_order_changes_them() -> None:
    with pytest.raises(ExaminationError, match="sample by sample; write the loop over"):
        mg.testing.assert_accumulation_invariant(
            _parts(lambda _, part: part["mask"].sum() * 6, size=1), _batch()
        )


def test_nothing_is_asserted_of_samples_that_are_alike() -> None:
    """A mean of means is right for equal parts of equally long samples, in any order."""
    mean_of_means = _parts(lambda _, part: part["mask"].sum() * 3)
    alike = _batch() | {"mask": MASK[3].expand(6, 5)}
    with pytest.raises(
        ExaminationError, match=r"parts of as many samples and real entries.*samples of different"
    ):
        mg.testing.assert_accumulation_invariant(mean_of_means, alike)
    with pytest.raises(AssertionError, match="splits the batch"):  # one less: parts of 2, 2 and 1
        mg.testing.assert_accumulation_invariant(mean_of_means, {k: held[:5] for k, held in alike.items()})
