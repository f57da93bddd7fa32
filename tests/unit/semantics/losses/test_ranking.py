"""Losses that rank or compare pairs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg
from tests.poison import assert_entries, gradient, poisoned


def test_the_distance_of_the_user_works_on_masked_tensors() -> None:
    anchor, positive, negative = (
        poisoned([[1.0, None], [None, None]], requires_grad=True),
        torch.zeros(2, 2),
        torch.ones(2, 2) * 3,
    )
    seen: list[Any] = []

    def distance(x: Any, y: Any) -> Any:
        seen.append((type(x), type(y)))
        return (x - y).abs().sum(-1)

    loss = nn.TripletMarginWithDistanceLoss(distance_function=distance, margin=2.5)(
        anchor, positive, negative
    )
    assert_entries(loss, 1.5)
    assert seen == [(mg.MaskedTensor, torch.Tensor)] * 2
    assert gradient(loss, anchor).tolist() == [[2.0, 0.0], [0.0, 0.0]]
    filling = {"distance_function": lambda x, y: (x.filled(0) - y).abs().sum(-1)}
    found = F.triplet_margin_with_distance_loss(anchor[:1], positive[:1], torch.ones(1, 2), **filling)
    assert_entries(found, 1.0)
