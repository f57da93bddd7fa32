"""Equality of whole tensors: patterns are compared exactly, values where they are specified."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import inf, nan, on

A = torch.tensor([1.0, nan, 3.0])


@pytest.mark.parametrize("same", [torch.equal, torch.allclose])
def test_what_is_under_the_mask_does_not_count(same) -> None:  # type: ignore[no-untyped-def]
    a = mg.masked(A, on(1, 0, 1))
    assert same(a, mg.masked(torch.tensor([1.0, inf, 3.0]), on(1, 0, 1))) is True
    assert same(a, mg.masked(torch.tensor([1.0, inf, 4.0]), on(1, 0, 1))) is False
    assert same(a, mg.masked(torch.tensor([1.0, 2.0, 3.0]), on(1, 1, 1))) is False
    assert same(a, torch.tensor([1.0, 2.0, 3.0])) is False
    nothing = mg.masked(A, on(0, 0, 0))
    assert same(nothing, mg.masked(A * 2, on(0, 0, 0))) is True


def test_a_real_nan_equals_nothing_unless_asked_for() -> None:
    a = mg.masked(A, on(1, 1, 1))
    assert not torch.equal(a, a.clone())
    assert not a.allclose(a)
    assert a.allclose(a, equal_nan=True)


def test_shapes_are_compared_by_equal_and_broadcast_by_allclose() -> None:
    row, column = mg.masked(torch.ones(1, 2), on([1, 1])), mg.masked(torch.ones(2, 1), on([1], [1]))
    assert not torch.equal(row, column)
    assert torch.allclose(row, column)
    assert torch.allclose(row, torch.ones(2) + 1e-9)
    assert not torch.allclose(row, torch.ones(2) + 0.1)
    assert torch.allclose(row, torch.ones(2) + 0.1, atol=0.2)


def test_a_row_is_not_equal_to_rows_whichever_comes_first() -> None:
    row, rows = mg.masked(torch.ones(2), on(1, 1)), mg.masked(torch.ones(2, 2), on([1, 1], [1, 1]))
    assert not torch.equal(row, rows)
    assert not torch.equal(rows, row)


def test_tensors_are_equal_however_they_are_stored() -> None:
    x = mg.masked(torch.tensor([[1.0, nan], [nan, 4.0]]), on([1, 0], [0, 1]))
    for other in (x, x.to_sparse(), x.to_sparse(torch.sparse_csc)):
        for one, two in ((x.to_sparse(), other), (other, x.to_sparse())):
            assert torch.equal(one, two)
            assert not torch.equal(one, two * 2)
