"""Losses of yes or no: masked logits, labels and weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.poison import assert_entries, gradient, inf, poisoned


def test_an_infinite_weight_meets_nothing_where_the_logit_is_missing() -> None:
    x = poisoned([[1.0, None], [0.5, None]], requires_grad=True)
    weight = torch.tensor([1.0, inf]).double()
    loss = F.binary_cross_entropy_with_logits(x, torch.ones(2, 2).double(), pos_weight=weight)
    assert loss.isfinite().all()
    assert gradient(loss, x).isfinite().all()


def test_the_function_behind_the_function() -> None:
    x, t = poisoned([0.5, None]), torch.ones(2).double()
    usual = F.binary_cross_entropy_with_logits(x, t, reduction="sum")
    assert_entries(torch.binary_cross_entropy_with_logits(x, t, None, None, 2), usual.item())


def test_other_sizes_are_refused() -> None:
    p, target = poisoned([[0.2, None], [0.9, 0.5]]), torch.ones(2).double()
    with pytest.raises(ValueError, match="different to the input size"):
        F.binary_cross_entropy(p, target)
    with pytest.raises(ValueError, match="must be the same as input size"):
        F.binary_cross_entropy_with_logits(p, target)
