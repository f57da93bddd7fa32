"""Matrix norms of the specified entries; those of singular values are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, gradient, poisoned

X = [[3.0, None, -4.0], [None, None, None], [1.0, 1.0, None]]


@pytest.mark.parametrize("ord", [-math.inf, -1])
def test_a_norm_of_nothing_is_unspecified_where_an_empty_matrix_has_none(ord: Any) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        torch.linalg.matrix_norm(torch.zeros(0, 0), ord)
    x = poisoned(X, requires_grad=True)
    for norm in (torch.linalg.matrix_norm(x[1:2], ord), torch.linalg.norm(x[1:2], ord)):
        assert_entries(norm, None)
        assert not gradient(norm, x).count_nonzero()


@pytest.mark.parametrize("ord", [2, -2, "nuc"])
def test_singular_values_are_refused(ord: Any) -> None:
    with pytest.raises(mg.UndefinedOnMaskedError, match="singular values"):
        torch.linalg.matrix_norm(poisoned(X), ord)
    with pytest.raises(mg.UndefinedOnMaskedError, match="singular values"):
        torch.linalg.norm(poisoned(X), ord)


def test_orders_and_ranks_without_a_norm_are_refused_as_by_torch() -> None:
    with pytest.raises(RuntimeError, match="not supported"):
        torch.linalg.matrix_norm(poisoned(X), 3)
    with pytest.raises(RuntimeError, match="1D or 2D"):
        torch.linalg.norm(poisoned([X]), 1)
    with pytest.raises(RuntimeError, match="matrices"):
        torch.linalg.norm(poisoned([1.0, None]), "fro")
    with pytest.raises(RuntimeError, match="at least 2 dimensions"):
        torch.linalg.matrix_norm(poisoned([1.0, None]))
