"""Margins between classes: deletion along them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, gradient, nan, on, poisoned

SCORES = [[0.5, None, -1.0, 2.0], [None, 0.3, 0.7, None], [1.0, 2.0, None, 4.0], [None, None, None, None]]
LABELS = torch.tensor([0, 2, 1, 2])


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("weight", [None, [1.0, 2.0, 3.0, 4.0]])
def test_other_classes_are_the_specified_ones(p: int, weight: Any) -> None:
    x = poisoned(SCORES, requires_grad=True)
    w = None if weight is None else torch.tensor(weight).double()
    rows = []
    for row, label in zip(SCORES[:3], LABELS.tolist(), strict=False):
        kept = [c for c, score in enumerate(row) if score is not None]
        one = torch.tensor([[row[c] for c in kept]], dtype=torch.float64)
        of_kept = None if w is None else w[kept]
        rows.append(
            F.multi_margin_loss(
                one, torch.tensor([kept.index(label)]), p=p, margin=0.7, weight=of_kept
            ).item()
        )
    loss = F.multi_margin_loss(x, LABELS, p=p, margin=0.7, weight=w, reduction="none")
    assert_entries(loss, [*rows, None])
    assert_entries(nn.MultiMarginLoss(p=p, margin=0.7, weight=w)(x, LABELS), sum(rows) / 3)
    assert not gradient(loss, x)[~x.mask].count_nonzero()


def test_labels_may_be_missing_or_point_at_nothing() -> None:
    x = poisoned(SCORES, requires_grad=True)
    labels = mg.masked(torch.tensor([0, 10**9, 2, 2]), on(1, 0, 1, 1))
    loss = F.multi_margin_loss(x, labels, reduction="none")
    assert loss.mask.tolist() == [True, False, False, False]
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


def pairs(scores: list[float | None], labels: list[int]) -> float:
    others = [c for c, score in enumerate(scores) if score is not None and c not in labels]
    total = sum(max(0.0, 1 - scores[y] + scores[c]) for y in labels for c in others)
    return total / sum(score is not None for score in scores)


def test_lists_of_labels() -> None:
    x = poisoned(SCORES, requires_grad=True)
    lists = torch.tensor([[2, 1, -1, 0], [3, 1, -1, 2], [0, 1, 3, -1], [1, -1, -1, -1]])
    loss = F.multilabel_margin_loss(x, lists, reduction="none")
    rows = [pairs(SCORES[0], [2]), pairs(SCORES[1], [1]), pairs(SCORES[2], [0, 1, 3])]
    assert rows[0] > rows[1] > rows[2] == 0
    assert_entries(loss, [*rows, None])
    assert_entries(nn.MultiLabelMarginLoss()(x, lists), sum(rows) / 3)
    assert not gradient(loss, x)[~x.mask].count_nonzero()


def test_a_label_is_deleted_from_its_list() -> None:
    x = torch.tensor([[0.5, 1.0, -1.0, 2.0]] * 3).double()
    lists = torch.tensor([[2, 10**9, 0, -1], [-5, -1, 0, 0], [0, 0, 0, 0]])
    masked = mg.masked(lists, on([1, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]))
    loss = F.multilabel_margin_loss(x, masked, reduction="none")
    assert_entries(loss, [pairs(x[0].tolist(), [2, 0]), 0.0, None])
    with pytest.raises(RuntimeError):
        F.multilabel_margin_loss(x, mg.masked(lists[:2]))
    with pytest.raises(RuntimeError):
        F.multilabel_margin_loss(mg.masked(x), torch.full((3, 4), 9))


@pytest.mark.parametrize("function", [F.multi_margin_loss, F.multilabel_margin_loss])
def test_one_number_is_a_sample_of_one_class(function: Any) -> None:
    label = torch.tensor(0)
    assert_entries(function(poisoned(1.0), label), function(torch.tensor(1.0), label).item())
    nothing = poisoned(None, requires_grad=True)
    assert_nothing(function(nothing, label), nan, nothing)
    assert_entries(function(nothing, label, reduction="none"), None)


def test_compiled() -> None:
    mask = poisoned(SCORES).mask
    x = torch.where(mask, poisoned(SCORES).filled(0), nan)
    lists = torch.tensor([[2, 1, -1, 0], [3, 1, -1, 2], [0, 1, 3, -1], [1, -1, -1, -1]])

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.multilabel_margin_loss(mg.masked(x, mask), lists)

    torch.testing.assert_close(torch.compile(loss, fullgraph=True, backend="aot_eager")(x), loss(x))
