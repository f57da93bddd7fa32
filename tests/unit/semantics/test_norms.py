"""Norms: of the specified entries; of nothing, unspecified with gradient zero; of singular values, refused."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, poisoned

X = [[3.0, None, 4.0], [None, None, None], [0.0, 0.0, None]]


@pytest.mark.parametrize("order", [inf, -inf, -1, -0.5])
def test_a_norm_of_nothing_is_unspecified_where_an_empty_tensor_has_none(order: float) -> None:
    with pytest.raises(RuntimeError):
        torch.linalg.vector_norm(torch.zeros(0), order)
    x, rows = poisoned([None, None], requires_grad=True), poisoned(X, requires_grad=True)
    norms = [x.norm(order), torch.norm(x, p=order), torch.linalg.norm(x, order)]
    for of, norm in [(x, norm) for norm in norms] + [(rows, torch.linalg.matrix_norm(rows[1:2], -1))]:
        assert_entries(norm, None)
        assert not gradient(norm, of).count_nonzero()


def test_singular_values_are_refused() -> None:
    with pytest.raises(
        mg.UndefinedOnMaskedError, match=r"norm\(p='nuc'\) is undefined .*singular values.*p='fro'"
    ):
        poisoned(X).norm("nuc")
    for order in (2, -2, "nuc"):
        for norm in (torch.linalg.matrix_norm, torch.linalg.norm):
            with pytest.raises(mg.UndefinedOnMaskedError, match="singular values"):
                norm(poisoned(X), order)


def test_orders_and_ranks_without_a_norm_are_refused_as_by_torch() -> None:
    with pytest.raises(RuntimeError, match="not supported"):
        torch.linalg.matrix_norm(poisoned(X), 3)
    with pytest.raises(RuntimeError, match="1D or 2D"):
        torch.linalg.norm(poisoned([X]), 1)
    with pytest.raises(RuntimeError, match="matrices"):
        torch.linalg.norm(poisoned([1.0, None]), "fro")
    with pytest.raises(RuntimeError, match="at least 2 dimensions"):
        torch.linalg.matrix_norm(poisoned([1.0, None]))
