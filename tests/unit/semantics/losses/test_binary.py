"""Losses of yes or no: masked logits, labels and weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg
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


@pytest.mark.parametrize("name", ["weight", "pos_weight"])
def test_an_unspecified_weight_takes_its_positions_out(name: str) -> None:
    x = poisoned([[0.5, 2.0, None], [1.0, -1.0, 0.0]], requires_grad=True)
    t = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]).double()
    loss = F.binary_cross_entropy_with_logits(x, t, **{name: poisoned([2.0, None, 3.0])})
    left = {name: torch.tensor([2.0, 2.0, 3.0]).double()}
    expected = F.binary_cross_entropy_with_logits(
        torch.tensor([0.5, 1.0, 0.0]).double(), torch.tensor([1.0, 0.0, 1.0]).double(), **left
    )
    assert_entries(loss, expected.item())
    assert gradient(loss, x)[:, 1].tolist() == [0.0, 0.0]


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


def test_the_number_of_classes_is_that_of_the_specified_ones() -> None:
    x = poisoned([[0.5, None, 1.0], [None, None, None], [2.0, 1.0, -1.0]], requires_grad=True)
    t = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]).double()
    loss = F.multilabel_soft_margin_loss(x, t, reduction="none")
    rows = [
        F.multilabel_soft_margin_loss(x.filled(0)[i][m], t[i][m], reduction="sum").item()
        for i, m in enumerate(x.mask)
        if m.any()
    ]
    assert_entries(loss, [rows[0], None, rows[1]])
    assert_entries(nn.MultiLabelSoftMarginLoss()(x, t), sum(rows) / 2)
    assert not gradient(loss, x)[1].count_nonzero()


def test_soft_margin() -> None:
    x = mg.masked(leaf(1.0, nan, -2.0), on(1, 0, 1))
    expected = F.soft_margin_loss(torch.tensor([1.0, -2.0]).double(), torch.tensor([1.0, 1.0]).double())
    assert_entries(nn.SoftMarginLoss()(x, torch.ones(3).double()), expected.item())


def test_the_function_behind_the_function() -> None:
    x, t = poisoned([0.5, None]), torch.ones(2).double()
    usual = F.binary_cross_entropy_with_logits(x, t, reduction="sum")
    assert_entries(torch.binary_cross_entropy_with_logits(x, t, None, None, 2), usual.item())
