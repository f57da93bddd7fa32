"""Contractions: products with an unspecified factor take no part; a sum of no products is unspecified."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, leaf, nan, on, poisoned

A = [[1.0, None, 2.0], [None, None, None], [None, 3.0, 4.0]]
B = [[1.0, None], [None, None], [5.0, 6.0]]


def counted(left: Tensor, right: Tensor) -> Tensor:
    """How many products have only specified factors."""
    return left.double() @ right.double()


def plain(x: mg.MaskedTensor) -> Tensor:
    return x.filled(0.0)


@pytest.mark.parametrize(
    ("left", "right"),
    [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
     ((5, 1, 2, 3), (6, 3, 4)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((2, 0), (0, 3)), ((0, 3), (3, 2))],
)  # fmt: skip
@pytest.mark.parametrize("masked", ["left", "right", "both"])
def test_every_combination_of_ranks(left: tuple[int, ...], right: tuple[int, ...], masked: str) -> None:
    parts: list[Any] = []
    for shape, name in ((left, "left"), (right, "right")):
        data, mask = torch.randn(shape).double(), torch.rand(shape) < 0.4
        parts.append(mg.masked(data.masked_fill(~mask, nan), mask) if masked in (name, "both") else data)
    result = torch.matmul(*parts)
    a, b = (plain(p) if isinstance(p, mg.MaskedTensor) else p for p in parts)
    masks = [p.mask if isinstance(p, mg.MaskedTensor) else torch.ones(p.shape) for p in parts]
    assert torch.equal(result.mask, counted(*masks) > 0)
    torch.testing.assert_close(result.filled(0.0), a @ b)


def test_values_pattern_and_gradients_by_hand() -> None:
    a, b = poisoned(A, requires_grad=True), poisoned(B, requires_grad=True)
    c = a @ b
    assert_entries(c, [[11.0, 12.0], [None, None], [20.0, 24.0]])
    assert gradient(c, a).tolist() == [[1.0, 0.0, 11.0], [0.0] * 3, [0.0, 0.0, 11.0]]
    assert gradient(c, b).tolist() == [[1.0, 0.0], [0.0, 0.0], [6.0, 6.0]]


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


def test_overflow_is_left_alone() -> None:
    assert_entries(poisoned([[1e300, None]]) @ torch.tensor([[1e300], [1.0]]).double(), [[inf]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.complex64])
def test_dtypes(dtype: torch.dtype) -> None:
    assert_entries(poisoned([[1, None]], dtype) @ poisoned([[2], [3]], dtype), [[2]], dtype=dtype)


def test_many_products_in_half_precision_are_still_counted() -> None:
    x = mg.masked(torch.ones(1, 70000, dtype=torch.float16), torch.arange(70000)[None] % 7 == 0)
    assert_entries(x @ torch.ones(70000, 1, dtype=torch.float16) / 100, [[100.0]], tol=1e-1)


def test_second_derivatives() -> None:
    a, b = leaf([1.0, nan]), leaf([3.0], [inf])
    product = (mg.masked(a, on([1, 0])) @ mg.masked(b, on([1], [0]))).filled(0.0).square().sum()
    (first,) = torch.autograd.grad(product, a, create_graph=True)
    assert first.tolist() == [[18.0, 0.0]]
    assert gradient(first, a).tolist() == [[18.0, 0.0]]
    assert gradient(first, b).tolist() == [[12.0], [0.0]]


class TestLinear:
    INPUT, WEIGHT = [[1.0, 2.0], [None, 4.0], [None, None]], [[1.0, 10.0], [None, 1.0]]

    def test_plain_weight(self) -> None:
        y = F.linear(poisoned(self.INPUT), torch.tensor([[1.0, 10.0]]).double(), leaf(0.5))
        assert_entries(y, [[21.5], [40.5], [None]])

    def test_masked_weight(self) -> None:
        y = F.linear(poisoned(self.INPUT), poisoned(self.WEIGHT))
        assert_entries(y, [[21.0, 2.0], [40.0, 4.0], [None, None]])
        assert_entries(F.linear(torch.ones(2).double(), poisoned([[1.0, None], [None, None]])), [1.0, None])
        assert_entries(F.linear(torch.ones(2, 2).double(), poisoned([3.0, None])), [3.0, 3.0])

    @pytest.mark.parametrize("plain_input", [False, True])
    def test_masked_bias(self, plain_input: bool) -> None:
        x = (
            torch.tensor([[1.0, 2.0], [0.0, 4.0], [0.0, 0.0]]).double()
            if plain_input
            else poisoned(self.INPUT)
        )
        bias = poisoned([5.0, None], requires_grad=True)
        y = F.linear(x, torch.ones(2, 2).double(), bias)
        assert_entries(y, [[8.0, None], [9.0, None], [5.0 if plain_input else None, None]])
        assert gradient(y, bias).tolist() == [3.0 if plain_input else 2.0, 0.0]

    def test_gradients(self) -> None:
        w, b = leaf([1.0, 10.0]), leaf(0.5)
        x = poisoned(self.INPUT, requires_grad=True)
        y = F.linear(x, w, b)
        assert gradient(y, w).tolist() == [[1.0, 6.0]]
        assert gradient(y, b).tolist() == [2.0]
        assert gradient(y, x).tolist() == [[1.0, 10.0], [0.0, 10.0], [0.0, 0.0]]


def test_spellings() -> None:
    a, b, v = poisoned(A), poisoned(B), poisoned([None, 1.0, 1.0])
    for result in (torch.mm(a, b), torch.matmul(a, b), a.matmul(b), torch.linalg.matmul(a, b), a.mm(mat2=b)):
        assert_entries(result, [[11.0, 12.0], [None, None], [20.0, 24.0]])
    assert_entries(torch.bmm(a[None], b[None])[0], [[11.0, 12.0], [None, None], [20.0, 24.0]])
    assert_entries(torch.mv(a, v), [2.0, None, 7.0])
    assert_entries(torch.dot(v, v), 2.0)
    assert_entries(torch.dot(v, poisoned([1.0, None, None])), None)


def test_keywords_in_any_order() -> None:
    a, b = poisoned([[1.0, None]]), torch.tensor([[2.0, 3.0], [nan, nan]]).double()
    assert_entries(torch.matmul(other=b, input=a), [[2.0, 3.0]])
    assert_entries(torch.mm(mat2=b, input=a), [[2.0, 3.0]])
    assert_entries(F.linear(weight=b.mT, input=a), [[2.0, 3.0]])


def test_shapes_that_do_not_match_are_torchs_error() -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        poisoned(A) @ torch.ones(2, 2).double()


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
