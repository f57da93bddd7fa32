"""Contractions: products with an unspecified factor take no part; a sum of no products is unspecified."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, leaf, nan, poisoned

A = [[1.0, None, 2.0], [None, None, None], [None, 3.0, 4.0]]


@pytest.mark.parametrize("other", [inf, -inf, nan])
def test_a_broken_partner_of_nothing_takes_no_part(other: float) -> None:
    x = poisoned([[1.0, None], [2.0, None]], requires_grad=True)
    w = leaf([1.0, 2.0], [other, other])
    assert_entries(x @ w, [[1.0, 2.0], [2.0, 4.0]])
    assert gradient(x @ w, x).tolist() == [[3.0, 0.0], [3.0, 0.0]]
    assert gradient(x @ w, w).tolist() == [[3.0, 3.0], [0.0, 0.0]]
    assert_entries(w.mT @ x.mT, [[1.0, 2.0], [2.0, 4.0]])
    assert_entries(F.linear(x, w.mT), [[1.0, 2.0], [2.0, 4.0]])


def test_a_broken_partner_of_something_shows_where_they_meet() -> None:
    x, w = poisoned([[1.0, None], [2.0, 3.0]]), leaf([1.0, 2.0], [inf, 5.0])
    assert_entries(x @ w, [[1.0, 2.0], [inf, 19.0]])
    assert_entries(poisoned([[1.0, 0.0]]) @ w, [[nan, 2.0]])
    assert_entries(poisoned([[1j, None]], torch.complex64) @ torch.tensor([[1.0 + 0j], [inf]]), [[1j]])


@pytest.mark.parametrize("broken", [inf, nan])
def test_on_fully_specified_input_even_broken_gradients_are_torchs(broken: float) -> None:
    a, b = leaf([broken, 1.0], [2.0, 3.0]), leaf([1.0], [2.0])
    for operand in (a, b):
        torch.testing.assert_close(
            gradient(mg.masked(a) @ b, operand), gradient(a @ b, operand), equal_nan=True
        )


def test_many_products_in_half_precision_are_still_counted() -> None:
    x = mg.masked(torch.ones(1, 70000, dtype=torch.float16), torch.arange(70000)[None] % 7 == 0)
    assert_entries(x @ torch.ones(70000, 1, dtype=torch.float16) / 100, [[100.0]], tol=1e-1)


PRODUCTS = ("mm", "bmm", "mv", "matmul", "dot", "vdot", "inner", "outer", "ger", "kron")


@pytest.mark.parametrize("name", [*PRODUCTS, "addmm", "addmv", "addbmm", "baddbmm", "equal", "allclose"])
@pytest.mark.parametrize("arguments", [(), (None,), ("a",)])
def test_what_is_no_tensor_is_a_type_error_as_in_torch(name: str, arguments: tuple[Any, ...]) -> None:
    for x in (torch.ones(2, 2), poisoned(A)):
        with pytest.raises(TypeError):
            getattr(x, name)(*arguments)


def test_such_an_error_names_the_types_that_people_know() -> None:
    with pytest.raises(TypeError, match="takes 2 tensors, found MaskedTensor, str"):
        poisoned(A).matmul("a")  # type: ignore[arg-type]
