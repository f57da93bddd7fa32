"""Norms: of the specified entries; of nothing, unspecified with gradient zero."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, assert_number, gradient, inf, poisoned

X = [[3.0, None, 4.0], [None, None, None], [0.0, 0.0, None]]


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, inf])
def test_rows_and_everything(order: float) -> None:
    rows = [torch.linalg.vector_norm(torch.tensor(r), order).item() for r in ([3.0, 4.0], [0.0, 0.0])]
    assert_entries(torch.linalg.vector_norm(poisoned(X), order, 1), [rows[0], None, rows[1]])
    assert_entries(
        torch.linalg.vector_norm(poisoned(X), order, 1, keepdim=True), [[rows[0]], [None], [rows[1]]]
    )
    whole = torch.linalg.vector_norm(torch.tensor([3.0, 4.0, 0.0, 0.0]), order).item()
    assert_entries(torch.linalg.vector_norm(poisoned(X), order), whole)


@pytest.mark.parametrize("order", [-inf, -1, -2])
def test_negative_orders(order: float) -> None:
    expected = torch.linalg.vector_norm(torch.tensor([3.0, 4.0]), order).item()
    assert_entries(torch.linalg.vector_norm(poisoned(X[:2]), order, 1), [expected, None])


def test_gradients() -> None:
    x = poisoned(X, requires_grad=True)
    assert_entries(gradient(x.norm(dim=1), x), [[0.6, 0.0, 0.8], [0.0] * 3, [0.0] * 3])
    assert_entries(gradient(x.norm(1, dim=1), x), [[1.0, 0.0, 1.0], [0.0] * 3, [0.0] * 3])
    assert_entries(gradient(x.norm(inf, dim=1), x), [[0.0, 0.0, 1.0], [0.0] * 3, [0.0] * 3])


def test_spellings() -> None:
    x = poisoned(X[:2])
    for result in (x.norm(), x.norm("fro"), torch.norm(x, p=2), torch.norm(x, 2, dim=(0, 1)), x.norm(p=None)):
        assert_entries(result, 5.0)
    assert_entries(poisoned(X, torch.float32).norm(dtype=torch.float64), 5.0, dtype=torch.float64)
    assert_entries(poisoned([3 + 4j, None], torch.complex64).norm(), 5.0, dtype=torch.float32)
    assert_entries(poisoned(-2.0).norm(), 2.0)


@pytest.mark.parametrize("order", [0.5, 1, 2, 3, 1000])
def test_a_norm_of_nothing_is_zero(order: float) -> None:
    assert torch.linalg.vector_norm(torch.zeros(0), order) == 0
    x = poisoned([None, None], requires_grad=True)
    assert_number(x.norm(0), 0.0)
    for norm in (
        x.norm(order),
        torch.norm(x, p=order),
        torch.linalg.vector_norm(x, order),
        torch.linalg.norm(x, order),
    ):
        assert_nothing(norm, 0.0, x)


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
