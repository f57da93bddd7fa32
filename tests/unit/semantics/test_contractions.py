"""Contractions: products with an unspecified factor take no part; a sum of no products is unspecified."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, leaf, nan, poisoned


def test_a_broken_partner_shows_where_it_meets_something() -> None:
    x = poisoned([[1.0, None], [2.0, None]], requires_grad=True)
    for other in (inf, nan):
        w = leaf([1.0, 2.0], [other, other])
        assert gradient(x @ w, x).tolist() == [[3.0, 0.0], [3.0, 0.0]]
        assert gradient(x @ w, w).tolist() == [[3.0, 3.0], [0.0, 0.0]]
        for product in (x @ w, w.mT @ x.mT, F.linear(x, w.mT)):
            assert_entries(product, [[1.0, 2.0], [2.0, 4.0]])
    x, w = poisoned([[1.0, None], [2.0, 3.0]]), leaf([1.0, 2.0], [inf, 5.0])
    assert_entries(x @ w, [[1.0, 2.0], [inf, 19.0]])
    assert_entries(poisoned([[1.0, 0.0]]) @ w, [[nan, 2.0]])
    assert_entries(poisoned([[1j, None]], torch.complex64) @ torch.tensor([[1.0], [inf]]).cfloat(), [[1j]])


def test_on_fully_specified_input_even_broken_gradients_are_torchs() -> None:
    for broken in (inf, nan):
        a, b = leaf([broken, 1.0], [2.0, 3.0]), leaf([1.0], [2.0])
        for x in (a, b):
            torch.testing.assert_close(gradient(mg.masked(a) @ b, x), gradient(a @ b, x), equal_nan=True)


def test_many_products_in_half_precision_are_still_counted() -> None:
    x = mg.masked(torch.ones(1, 70000, dtype=torch.float16), torch.arange(70000)[None] % 7 == 0)
    assert_entries(x @ torch.ones(70000, 1, dtype=torch.float16) / 100, [[100.0]], tol=1e-1)


PRODUCTS = ("mm", "bmm", "mv", "matmul", "dot", "vdot", "inner", "outer", "ger", "kron")


@pytest.mark.parametrize("name", [*PRODUCTS, "addmm", "addmv", "addbmm", "baddbmm", "equal", "allclose"])
def test_what_is_no_tensor_is_a_type_error_as_in_torch(name: str) -> None:
    for arguments in ((), (None,), ("a",)):
        with pytest.raises(TypeError):
            getattr(poisoned([[1.0, None], [2.0, 3.0]]), name)(*arguments)
    with pytest.raises(TypeError, match="takes 2 tensors, found MaskedTensor, str"):
        poisoned([[1.0]]).matmul("a")  # type: ignore[arg-type]


STEP = [[None, 2.0, None], [None, None, 3.0], [None, None, None]]


def test_plain_parts_and_vectors() -> None:
    v, ones = poisoned([None, 1.0]), leaf([1.0, 1.0], [1.0, 1.0])
    assert_entries(torch.linalg.multi_dot((ones[0], ones, ones, v)), 4.0)
    assert_entries(
        torch.linalg.multi_dot(tensors=[ones, poisoned([[None, None], [1.0, 2.0]])]), [[1.0, 2.0]] * 2
    )
    assert_entries(torch.chain_matmul(poisoned([[1.0, None]])), [[1.0, None]])


def test_powers_and_operands_of_other_ranks_are_refused() -> None:
    with pytest.raises(mg.UndefinedOnMaskedError, match="no inverse"):
        poisoned(STEP).matrix_power(-1)
    with pytest.raises(RuntimeError, match="square"):
        torch.linalg.matrix_power(poisoned([[1.0, None]]), 2)
    with pytest.raises(RuntimeError, match="at least 2 tensors"):
        torch.linalg.multi_dot([poisoned(STEP)])
    with pytest.raises(RuntimeError, match="tensor 1 must be 2D but got 1D"):
        torch.linalg.multi_dot([poisoned(STEP), torch.ones(3).double(), poisoned(STEP)])
    with pytest.raises(RuntimeError, match="tensor 0 must be 1D or 2D but got 3D"):
        torch.linalg.multi_dot([poisoned([STEP]), poisoned(STEP)])
    with pytest.raises(RuntimeError, match="tensor 1 must be 2D"):
        torch.chain_matmul(poisoned(STEP), torch.ones(3).double())


def test_inner_repeats_no_dimension_of_size_1() -> None:
    for sizes in (((2, 3), (2, 1)), ((2, 1), (2, 3)), ((3,), (1,)), ((2, 3), (2, 4)), ((3, 4), (2, 3))):
        x, y = (mg.masked(torch.ones(size)) for size in sizes)
        for left, right in ((x, y), (x, y.filled(0.0)), (x.filled(0.0), y)):
            with pytest.raises(RuntimeError, match="last dimension must match"):
                torch.inner(left, right)
