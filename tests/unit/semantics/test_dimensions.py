"""How ``dim`` is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from maskgrad.kernels.smallest import any_of
from maskgrad.semantics.dimensions import as_dim, as_dims, drop
from tests.poison import on


@pytest.mark.parametrize(
    ("dim", "ndim", "expected"),
    [(None, 2, (0, 1)), ((), 2, (0, 1)), ([], 2, (0, 1)), (1, 2, (1,)), (-1, 3, (2,)), ((0, -1), 3, (0, 2)),
     ([1, 0], 2, (1, 0)), (0, 0, ()), (-1, 0, ()), (None, 0, ())],
)  # fmt: skip
def test_dimensions_are_counted_from_the_front(dim: Any, ndim: int, expected: tuple[int, ...]) -> None:
    assert as_dims(dim, ndim) == expected


@pytest.mark.parametrize(("dim", "ndim", "limits"), [(2, 2, "-2, 1"), (-3, 2, "-2, 1"), (1, 0, "-1, 0")])
def test_out_of_range_is_said_in_torchs_words(dim: int, ndim: int, limits: str) -> None:
    with pytest.raises(IndexError) as ours:
        as_dim(dim, ndim)
    with pytest.raises(IndexError) as torchs:
        torch.zeros((1,) * ndim).sum(dim)
    assert str(ours.value) == str(torchs.value)
    assert limits in str(ours.value)


def test_a_dimension_may_be_named_once() -> None:
    with pytest.raises(
        RuntimeError, match=r"must not contain a dimension twice, got \(0, -2\) for a tensor of 2"
    ):
        as_dims((0, -2), 2)


def test_where_at_least_one_entry_is() -> None:
    mask = on([1, 0], [0, 0])
    assert any_of(mask, (1,), False).tolist() == [True, False]
    assert any_of(mask, (0, 1), True).tolist() == [[True]]
    assert any_of(mask, (), False) is mask


def test_dropping_the_dimensions_that_were_kept() -> None:
    assert drop(torch.zeros(1, 2, 1), (0, 2)).shape == (2,)
    assert drop(torch.zeros(1, 2, 1), ()).shape == (1, 2, 1)
