"""Distances: torch's own between the coordinates that both vectors specify."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.poison import assert_entries, assert_nothing, assert_number, gradient, inf, leaf, nan, poisoned


def test_a_real_nan_shows() -> None:
    for p in (0.0, 1.0, 2.0):
        assert_entries(torch.cdist(poisoned([[nan, 1.0, None]]), torch.ones(1, 3).double(), p), [[nan]])
    assert_entries(torch.cdist(poisoned([[1.0, None]]), leaf([3.0, inf])), [[2.0]])
    assert_entries(
        torch.cdist(poisoned([[1.0, None]]), leaf([3.0, inf]), 2.0, "use_mm_for_euclid_dist"), [[2.0]]
    )


@pytest.mark.parametrize("p", [0.5, 1, 2, 3])
def test_dist_of_nothing_is_zero(p: float) -> None:
    a, b = poisoned([1.0, None], requires_grad=True), poisoned([None, 1.0], requires_grad=True)
    assert_nothing(a.dist(b, p), 0.0, a, b)
    assert_number(a.dist(b, 0), 0.0)


@pytest.mark.parametrize("p", [inf, -inf, -1, -2.0])
def test_dist_of_nothing_is_unspecified_where_an_empty_tensor_has_none(p: float) -> None:
    with pytest.raises(RuntimeError):
        torch.dist(torch.zeros(0), torch.zeros(0), p)
    a = poisoned([1.0, None], requires_grad=True)
    assert_entries(a.dist(poisoned([None, 1.0]), p), None)
    assert gradient(torch.dist(a, poisoned([None, 1.0]), p), a).tolist() == [0.0, 0.0]


def test_distances_take_the_arguments_of_torch() -> None:
    x, y = poisoned([[3.0, None], [4.0, None]], requires_grad=True), torch.tensor([[0.0], [0.0]]).double()
    assert_entries(F.pairwise_distance(x, y, eps=0.0, keepdim=True), [[3.0], [4.0]])
    assert_entries(F.cosine_similarity(x, y + 1, dim=0), [7 / 5 / math.sqrt(2), None])
    assert_entries(nn.CosineSimilarity(dim=1)(x, y + 1), [1.0, 1.0])
    assert_entries(nn.PairwiseDistance(p=1, eps=0.0)(poisoned([1.0, None]), poisoned([None, 2.0])), None)
    assert gradient(F.cosine_similarity(x, y + 1, dim=0), x)[:, 1].tolist() == [0.0, 0.0]
