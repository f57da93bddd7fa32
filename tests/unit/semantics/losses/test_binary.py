"""Losses of yes or no: masked logits, labels and weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.poison import assert_entries, gradient, inf, leaf, nan, on, poisoned

LABELS = [[1.0, None], [0.0, 1.0]]


def test_a_missing_label_is_no_negative_one() -> None:
    logits, labels = leaf([0.5, nan], [1.0, -1.0]), poisoned(LABELS)
    kept = on([1, 0], [1, 1])
    loss = nn.BCEWithLogitsLoss()(logits, labels)
    alone = leaf(0.5, 1.0, -1.0)
    expected = F.binary_cross_entropy_with_logits(alone, torch.tensor([1.0, 0.0, 1.0]).double())
    assert_entries(loss, expected.item())
    assert_entries(gradient(loss, logits)[kept], gradient(expected, alone).tolist())
    assert gradient(loss, logits)[~kept].tolist() == [0.0]


def test_an_infinite_weight_meets_nothing_where_the_logit_is_missing() -> None:
    x = poisoned([[1.0, None], [0.5, None]], requires_grad=True)
    weight = torch.tensor([1.0, inf]).double()
    loss = F.binary_cross_entropy_with_logits(x, torch.ones(2, 2).double(), pos_weight=weight)
    assert loss.isfinite().all()
    assert gradient(loss, x).isfinite().all()


def test_probabilities_outside_the_unit_interval_may_lie_under_the_mask() -> None:
    p, t = poisoned([[0.2, None], [0.9, 0.5]], requires_grad=True), poisoned(LABELS)
    expected = F.binary_cross_entropy(
        torch.tensor([0.2, 0.9, 0.5]).double(), torch.tensor([1.0, 0.0, 1.0]).double()
    )
    assert_entries(nn.BCELoss()(p, t), expected.item())
    weighted = F.binary_cross_entropy(p, t, weight=poisoned([1.0, None]))
    assert_entries(
        weighted,
        F.binary_cross_entropy(torch.tensor([0.2, 0.9]).double(), torch.tensor([1.0, 0.0]).double()).item(),
    )
    with pytest.raises(ValueError, match="different to the input size"):
        F.binary_cross_entropy(p, torch.ones(2).double())
    with pytest.raises(ValueError, match="must be the same as input size"):
        F.binary_cross_entropy_with_logits(p, torch.ones(2).double())


def test_the_function_behind_the_function() -> None:
    x, t = poisoned([0.5, None]), torch.ones(2).double()
    usual = F.binary_cross_entropy_with_logits(x, t, reduction="sum")
    assert_entries(torch.binary_cross_entropy_with_logits(x, t, None, None, 2), usual.item())
