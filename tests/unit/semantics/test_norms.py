"""Norms: of the specified entries; of nothing, unspecified with gradient zero."""

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
    x = poisoned([None, None], requires_grad=True)
    for norm in (
        x.norm(order),
        torch.norm(x, p=order),
        torch.linalg.vector_norm(x, order),
        torch.linalg.norm(x, order),
    ):
        assert_entries(norm, None)
        assert not gradient(norm, x).count_nonzero()


def test_singular_values_are_refused() -> None:
    with pytest.raises(
        mg.UndefinedOnMaskedError, match=r"norm\(p='nuc'\) is undefined .*singular values.*p='fro'"
    ):
        poisoned(X).norm("nuc")
