"""Margins between classes: deletion along them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, nan, on, poisoned

SCORES = [[0.5, None, -1.0, 2.0], [None, 0.3, 0.7, None], [1.0, 2.0, None, 4.0], [None, None, None, None]]
LABELS = torch.tensor([0, 2, 1, 2])


def test_labels_may_be_missing_or_point_at_nothing() -> None:
    x = poisoned(SCORES, requires_grad=True)
    labels = mg.masked(torch.tensor([0, 10**9, 2, 2]), on(1, 0, 1, 1))
    assert F.multi_margin_loss(x, labels, reduction="none").mask.tolist() == [True, False, False, False]
    assert_entries(F.multi_margin_loss(x[0], torch.tensor(1), reduction="none"), None)
    assert_nothing(F.multi_margin_loss(x[0], torch.tensor(1)), nan, x)
    assert_nothing(F.multi_margin_loss(x[0], torch.tensor(1), reduction="sum"), 0.0, x)
    assert_entries(
        F.multi_margin_loss(x, LABELS, weight=poisoned([None, 1.0, 1.0, 1.0]), reduction="none")[0], None
    )
    with pytest.raises(ValueError, match="p == 1"):
        F.multi_margin_loss(x, LABELS, p=3)
    with pytest.raises(ValueError, match="one-dimensional"):
        F.multi_margin_loss(x, LABELS, weight=torch.ones(2, 2))
    with pytest.raises(RuntimeError):
        F.multi_margin_loss(x, LABELS[:2])


def test_a_label_is_deleted_from_its_list() -> None:
    x = torch.tensor([[0.5, 1.0, -1.0, 2.0]] * 3).double()
    lists = torch.tensor([[2, 10**9, 0, -1], [-5, -1, 0, 0], [0, 0, 0, 0]])
    masked = mg.masked(lists, on([1, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]))
    expected = F.multilabel_margin_loss(x[0], torch.tensor([2, 0, -1, -1])).item()
    assert_entries(F.multilabel_margin_loss(x, masked, reduction="none"), [expected, 0.0, None])
    with pytest.raises(RuntimeError):
        F.multilabel_margin_loss(x, mg.masked(lists[:2]))
    with pytest.raises(RuntimeError):
        F.multilabel_margin_loss(mg.masked(x), torch.full((3, 4), 9))


def test_the_function_behind_the_function() -> None:
    x, t = poisoned([0.5, None]), torch.ones(2).double()
    usual = F.binary_cross_entropy_with_logits(x, t, reduction="sum")
    assert_entries(torch.binary_cross_entropy_with_logits(x, t, None, None, 2), usual.item())
