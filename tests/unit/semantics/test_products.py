"""Sums of products: spellings of einsum, and factors that are not finite."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from maskgrad.semantics.products import einsum_call, letters, written_out
from tests.poison import assert_entries, inf, leaf, nan, poisoned


def test_an_equation_may_be_spelled_in_lists_and_numbers() -> None:
    a, b = poisoned([[1.0, None], [None, 2.0]]), poisoned([[1.0, 2.0], [None, None]])
    expected = [[1.0, 2.0], [None, None]]
    assert_entries(torch.einsum("ij,jk->ik", [a, b]), expected)
    assert_entries(torch.einsum("ij,jk->ik", (a, b)), expected)
    assert_entries(torch.einsum(a, [0, 1], b, [1, 2], [0, 2]), expected)
    assert_entries(torch.einsum(a, [0, 1], b, [1, 2]), expected)
    assert_entries(torch.einsum(a, [..., 0, 1], b, [..., 1, 30], [..., 0, 30]), expected)
    assert_entries(torch.einsum(a.filled(0), [0, 1], b, [1, 2], [0, 2]), [[1.0, 2.0], [0.0, 0.0]])


def test_equations_are_written_out_in_letters() -> None:
    assert written_out("...ij,...j", [4, 2])[:2] == (("ABij", "Bj"), "ABi")
    assert written_out("ba", [2])[:2] == (("ba",), "ab")
    assert written_out("bA", [2]).result == "Ab"
    assert einsum_call(["i,i", 1, 2]) == ("i,i", [1, 2])
    assert len(set(letters(52))) == 52
    with pytest.raises(ValueError, match="53 dimensions"):
        letters(53)


def test_long_chains_do_not_overflow_the_count() -> None:
    n = 30
    equation = (
        ",".join(letters(n + 1)[i : i + 2] for i in range(n)) + f"->{letters(n + 1)[0]}{letters(n + 1)[n]}"
    )
    factors = [mg.masked(torch.full((40, 40), 1e-2), torch.ones(40, 40).bool()) for _ in range(n)]
    factors[3] = mg.masked(
        torch.full((40, 40), 1e-2), torch.zeros(40, 40).bool().index_fill(1, torch.tensor([0]), True)
    )
    assert torch.einsum(equation, *factors).mask.all()


class TestPlusProduct:
    A, B = [[1.0, None], [None, None]], [[2.0, 3.0], [4.0, 5.0]]

    @pytest.mark.filterwarnings("ignore:This overload of")
    def test_the_old_form_with_numbers_among_the_tensors(self) -> None:
        c, a, b = torch.ones(2, 2).double(), poisoned(self.A), poisoned(self.B)
        expected = [[8.0, 11.0], [None, None]]
        assert_entries(torch.addmm(2, c, 3, a, b), expected)
        assert_entries(mg.masked(c).addmm(2, 3, a, b), expected)
        assert_entries(torch.addmm(2, c, a, b), [[4.0, 5.0], [None, None]])


def test_an_infinite_factor_among_three_is_silent_without_partners() -> None:
    a, b, w = poisoned([[1.0, None]]), leaf([1.0, 2.0]), leaf([[1.0, 1.0], [inf, inf]])
    assert_entries(F.bilinear(a, b, w), [[3.0]])
    assert_entries(F.bilinear(mg.masked(leaf([1.0, 0.0])), b, w), [[nan]])
    assert_entries(torch.vdot(poisoned([1.0, None]), leaf(2.0, inf)), 2.0)


def test_no_products_at_all() -> None:
    a = mg.masked(torch.ones(2, 0))
    assert_entries(torch.einsum("ij,kj->ik", a, torch.ones(3, 0)), [[None] * 3] * 2)
    assert torch.einsum("ij,jk->ik", mg.masked(torch.ones(0, 2)), torch.ones(2, 3)).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_nan_without_partners_stays_out_next_to_an_infinity_with_one(dtype: torch.dtype) -> None:
    """Every kind of broken product at once, against a sum over the products that are specified."""
    left = poisoned([[1.0, None, -1.0, 0.0], [None, None, 2.0, 1.0], [1.0, 1.0, None, None]], dtype=dtype)
    right = torch.tensor([[inf, 1.0, nan], [nan, -inf, 2.0], [inf, inf, 0.5], [3.0, inf, nan]], dtype=dtype)
    expected = torch.tensor([[nan, nan, nan], [inf, inf, nan], [nan, -inf, nan]], dtype=dtype)
    assert_entries(left @ right, expected.tolist())
    assert_entries((right.T @ left.T).T, expected.tolist())
    other = torch.where(torch.tensor([True, True, False])[None], right, 0.25)
    total = [[sum(a * b for a, b, m in zip(v, c, k, strict=True) if m) for c in other.T.tolist()]
             for v, k in zip(left.filled(0).tolist(), left.mask.tolist(), strict=True)]  # fmt: skip
    assert_entries(left @ other, total)


def test_gradients_pass_by_a_broken_product_that_is_absent() -> None:
    a, b = leaf([1.0, nan], [2.0, 3.0]), leaf([inf, 1.0], [nan, 2.0])
    result = mg.masked(a, torch.tensor([[True, False], [True, True]])) @ b
    assert_entries(result, [[inf, 1.0], [nan, 8.0]])
    result.sum(0)[1].filled(0).backward()
    assert a.grad is not None
    assert a.grad[0, 1] == 0


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e38])
@pytest.mark.parametrize("weight", ["zeros", "huge", "usual"])
def test_garbage_in_whole_rows_shows_in_one_column(garbage: float, weight: str) -> None:
    kept = torch.tensor([True, False, True, False])[:, None].expand(4, 3)
    x = torch.where(kept, torch.arange(12.0).view(4, 3), garbage)
    w = torch.randn(5, 3)
    w[0] = {"zeros": 0.0, "huge": 1e38, "usual": 1.0}[weight]
    leaf = w.clone().requires_grad_()
    found = torch.nn.functional.linear(mg.masked(x, kept), leaf)
    known = x[kept[:, 0]]
    assert torch.equal(found.mask, kept[:, :1].expand(4, 5))
    torch.testing.assert_close(found.filled(0.0)[kept[:, 0]], known @ w.mT)
    found.filled(0.0).sum().backward()
    torch.testing.assert_close(leaf.grad, known.sum(0).expand(5, 3))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_meets_what_is_specified_only(number: float) -> None:
    mask = torch.rand(40, 3, generator=torch.Generator().manual_seed(0)) < 0.5
    x = torch.where(mask, torch.ones(40, 3), float("nan"))
    w = torch.ones(5, 3)
    w[2, 1] = number
    found = torch.nn.functional.linear(mg.masked(x, mask), w)
    expected = torch.where(mask[:, None], x[:, None] * w, 0).sum(-1)
    torch.testing.assert_close(found.filled(0.0), expected, equal_nan=True)


def test_a_gradient_beside_a_weight_that_is_not_finite_is_none_in_rows_that_are_not_there() -> None:
    kept = torch.tensor([True, False, True, False])[:, None].expand(4, 3)
    x, w = torch.randn(4, 3).requires_grad_(), torch.randn(5, 3)
    w[2, 1] = inf  # in no result of the first column
    F.linear(mg.masked(x, kept), w).filled(0.0).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad[~kept[:, 0]], torch.zeros(2, 3))


def test_einsum_mistakes_are_torchs() -> None:
    a = poisoned([[1.0, None]])
    with pytest.raises(ValueError, match="subscript"):
        torch.einsum(a, [0, 99], a, [0, 1])
    with pytest.raises(RuntimeError, match="einsum"):
        torch.einsum("ijk->i", a)
    with pytest.raises(RuntimeError, match="einsum"):
        torch.einsum("ij,ij->ik", a, a)
