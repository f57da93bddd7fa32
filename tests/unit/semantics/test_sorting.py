"""Sorting, distinct entries, membership, search: torch's on what is left; unspecified entries last."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, nan, poisoned


def test_specified_infinities_and_nan_are_no_sentinels() -> None:
    x = poisoned([None, nan, None, -inf, inf, None], requires_grad=True)
    assert_entries(x.sort().values, [-inf, inf, nan, None, None, None])
    assert_entries(x.argsort(descending=True), [1, 4, 3, None, None, None])
    assert_entries(x.topk(4).indices, [1, 4, 3, None])
    assert_entries(x.topk(2, largest=False).indices, [3, 4])
    assert_entries(poisoned([None, -inf, None, -inf, None]).topk(3).values, [-inf, -inf, None])
    limits = torch.iinfo(torch.int64)
    assert_entries(
        poisoned([None, limits.min, None, limits.min], torch.int64).topk(2).values, [limits.min] * 2
    )
    assert gradient(x.topk(4).values[2:], x).tolist() == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]


def test_distinct_slices_must_be_complete() -> None:
    x = poisoned([[1.0, 2.0], [None, None], [1.0, 2.0], [0.0, 5.0]])
    found, inverse = x.unique(dim=0, return_inverse=True)
    assert_entries(found, [[0.0, 5.0], [1.0, 2.0]])
    assert_entries(inverse, [1, None, 1, 0])
    assert_entries(x.unique_consecutive(dim=0), [[1.0, 2.0], [0.0, 5.0]])
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"1 slices along dimension 0 .* first at position 1"):
        poisoned([[1.0, 2.0], [None, 2.0]]).unique(dim=0)
