"""Losses that rank or compare pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg
from tests.poison import assert_entries, gradient, nan, on, poisoned

A = [[1.0, None, 2.0], [0.5, 1.0, None], [None, 1.0, None]]
B = [[0.5, 3.0, 1.0], [None, 2.0, 1.0], [1.0, None, 2.0]]


def common(*rows: list[float | None]) -> list[torch.Tensor]:
    """Rows without the features that one of them lacks."""
    kept = [i for i in range(len(rows[0])) if all(row[i] is not None for row in rows)]
    return [torch.tensor([[row[i] for i in kept]], dtype=torch.float64) for row in rows]


def test_pairs_are_ranked_where_all_three_are_specified() -> None:
    x, y, t = poisoned([1.0, None, 3.0]), poisoned([2.0, 1.0, None]), poisoned([1.0, 1.0, 1.0])
    for function in (F.margin_ranking_loss, torch.margin_ranking_loss):
        assert_entries(function(x, y, t, margin=0.5), 1.5)
    assert_entries(nn.MarginRankingLoss(0.5, reduction="none")(x, y, t), [1.5, None, None])
    with pytest.raises(RuntimeError, match="same dimension"):
        F.margin_ranking_loss(x, y, torch.ones(1, 3))


def test_hinge() -> None:
    x, t = poisoned([0.3, None, 0.4]), torch.tensor([1.0, 1.0, -1.0]).double()
    assert_entries(nn.HingeEmbeddingLoss(reduction="none")(x, t), [0.3, None, 0.6])
    assert_entries(torch.hinge_embedding_loss(x, t), 0.45)


def test_cosines_of_common_features() -> None:
    x, y = poisoned(A, requires_grad=True), poisoned(B, requires_grad=True)
    labels = torch.tensor([1, -1, 1])
    rows = [
        F.cosine_embedding_loss(*common(a, b), label[None], reduction="sum").item()
        for a, b, label in zip(A[:2], B[:2], labels, strict=False)
    ]
    loss = F.cosine_embedding_loss(x, y, labels, reduction="none")
    assert_entries(loss, [*rows, None])
    assert_entries(nn.CosineEmbeddingLoss()(x, y, mg.masked(labels, on(0, 1, 1))), rows[1])
    for side in (x, y):
        assert not gradient(loss, side)[~(x.mask & y.mask)].count_nonzero()
    assert_entries(F.cosine_embedding_loss(x[0], y[0], torch.tensor(1)), rows[0])


def test_an_unspecified_pair_sends_no_nan_back() -> None:
    x = torch.tensor([[nan, nan], [1.0, 2.0]], requires_grad=True)
    labels = mg.masked(torch.tensor([1, 1]), on(0, 1))
    loss = F.cosine_embedding_loss(x, torch.ones(2, 2), labels)
    assert gradient(loss, x)[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("swap", [False, True])
def test_triplets(p: float, swap: bool) -> None:
    c = [[1.0, 1.0, 1.0], [2.0, 1.0, None], [1.0, 2.0, 3.0]]
    sides = [poisoned(side, requires_grad=True) for side in (A, B, c)]
    rows: list[float | None] = []
    for a, b, n in zip(A, B, c, strict=True):
        pairs = [(a, b), (a, n), (b, n)][: 3 if swap else 2]
        if any(common(*pair)[0].numel() == 0 for pair in pairs):
            rows.append(None)
            continue
        near, *far = (F.pairwise_distance(*common(*pair), p=p).item() for pair in pairs)
        rows.append(max(0.0, 1 + near - min(far)))
    loss = nn.TripletMarginLoss(p=p, swap=swap, reduction="none")(*sides)
    assert_entries(loss, rows)
    assert None in rows
    for side in sides:
        assert not gradient(loss, side)[~side.mask].count_nonzero()
    known = [row for row in rows if row is not None]
    assert_entries(F.triplet_margin_loss(*sides, p=p, swap=swap), sum(known) / len(known))
    assert_entries(F.triplet_margin_with_distance_loss(*sides, swap=swap, reduction="sum",
                   distance_function=nn.PairwiseDistance(p)), sum(known))  # fmt: skip


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


def test_a_distance_that_fills_what_is_missing() -> None:
    anchor = poisoned([[1.0, None]])
    loss = F.triplet_margin_with_distance_loss(
        anchor,
        torch.zeros(1, 2),
        torch.ones(1, 2),
        distance_function=lambda x, y: (x.filled(0) - y).abs().sum(-1),
    )
    assert_entries(loss, 1.0)


def test_mistakes_are_torchs() -> None:
    x = poisoned(A)
    with pytest.raises(ValueError, match="margin must be greater"):
        F.triplet_margin_loss(x, x, x, margin=0)
    with pytest.raises(RuntimeError, match="same number of dimensions"):
        F.triplet_margin_loss(x, x, x[0])
