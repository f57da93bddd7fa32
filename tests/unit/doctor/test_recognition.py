from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.errors import ExaminationError
from tests.unit.doctor.programs import recognised

MASK = torch.arange(4) < torch.tensor([4, 2])[:, None]
X = torch.ones(2, 4, 3)


@pytest.mark.parametrize(
    ("batch", "key"),
    [
        ({"x": X, "attention_mask": MASK.long()}, "x"),
        ({"x": X, "src_key_padding_mask": ~MASK}, "x"),
        ({"x": X, "lengths": torch.tensor([4, 2])}, "x"),
        ((X, torch.tensor([4, 2])), 0),
        ((X, MASK), 0),
        ({"x": mg.masked(torch.ones(2, 4), MASK)}, "x"),
        ({"labels": torch.ones(2, 4).long().masked_fill(~MASK, -100)}, "labels"),
        ({"y": torch.ones(2, 4).masked_fill(~MASK, torch.nan)}, "y"),
    ],
)
def test_padding_is_recognised(batch: Any, key: Any) -> None:
    (padding,) = recognised(batch, None)
    assert padding.key == key
    assert torch.equal(padding.mask.expand(2, 4), MASK)


def test_attention_masks_are_not_padding() -> None:
    square = torch.ones(2, 4, 4).tril() > 0
    assert recognised({"pairs": torch.ones(2, 4, 4, 8), "attention_mask": square}, None) == []


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3)])
def test_an_observed_mask_applies_to_values_only(shape: tuple[int, ...]) -> None:
    observed = torch.ones(shape) > 0
    observed[1, 2:] = False
    batch = {
        "past_values": torch.ones(shape),
        "past_observed_mask": observed,
        "past_time_features": torch.ones(2, 4, 5),
        "future_values": torch.ones(shape),
    }
    assert [padding.key for padding in recognised(batch, None)] == ["past_values"]


def test_a_mask_given_is_of_the_leading_dimensions() -> None:
    (padding,) = recognised({"x": torch.ones(3, 3)}, {"x": torch.tensor([True, True, False])})
    assert padding.entries(torch.ones(3, 3)).tolist() == [[True] * 3, [True] * 3, [False] * 3]
    with pytest.raises(
        ExaminationError, match=r"shape \(4,\) does not fit .*leading dimensions, such as \(2,\)"
    ):
        recognised({"x": torch.ones(2, 4)}, {"x": MASK[0]})
