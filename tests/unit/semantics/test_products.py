"""Sums of products: spellings of einsum, and factors that are not finite."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from maskgrad.semantics.products import letters
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
    with pytest.raises(ValueError, match="subscript"):
        torch.einsum(a, [0, 99], a, [0, 1])
    with pytest.raises(RuntimeError, match="einsum"):
        torch.einsum("ijk->i", a)
    with pytest.raises(RuntimeError, match="einsum"):
        torch.einsum("ij,ij->ik", a, a)
    with pytest.raises(ValueError, match="53 dimensions"):
        letters(53)


def test_long_chains_do_not_overflow_the_count() -> None:
    names, data = letters(31), torch.full((40, 40), 1e-2)
    equation = ",".join(names[i : i + 2] for i in range(30)) + f"->{names[0]}{names[30]}"
    factors = [mg.masked(data) for _ in range(30)]
    factors[3] = mg.masked(data, (torch.arange(40) == 0).expand(40, 40))
    assert torch.einsum(equation, *factors).mask.all()


@pytest.mark.filterwarnings("ignore:This overload of")
def test_the_old_form_with_numbers_among_the_tensors() -> None:
    c, a, b = (
        leaf([1.0, 1.0], [1.0, 1.0]),
        poisoned([[1.0, None], [None, None]]),
        poisoned([[2.0, 3.0], [4.0, 5.0]]),
    )
    for found in (torch.addmm(2, c, 3, a, b), mg.masked(c).addmm(2, 3, a, b)):
        assert_entries(found, [[8.0, 11.0], [None, None]])
    assert_entries(torch.addmm(2, c, a, b), [[4.0, 5.0], [None, None]])


def test_an_infinite_factor_among_three_is_silent_without_partners() -> None:
    a, b, w = poisoned([[1.0, None]]), leaf([1.0, 2.0]), leaf([[1.0, 1.0], [inf, inf]])
    assert_entries(F.bilinear(a, b, w), [[3.0]])
    assert_entries(F.bilinear(mg.masked(leaf([1.0, 0.0])), b, w), [[nan]])
    assert_entries(torch.vdot(poisoned([1.0, None]), leaf(2.0, inf)), 2.0)


def test_a_nan_without_partners_stays_out_next_to_an_infinity_with_one() -> None:
    """Every kind of broken product at once, against a sum over the products that are specified."""
    left = poisoned([[1.0, None, -1.0, 0.0], [None, None, 2.0, 1.0], [1.0, 1.0, None, None]])
    right = torch.tensor([[inf, 1.0, nan], [nan, -inf, 2.0], [inf, inf, 0.5], [3.0, inf, nan]]).type_as(
        left.get_data()
    )
    for found in (left @ right, (right.T @ left.T).T):
        assert_entries(found, [[nan, nan, nan], [inf, inf, nan], [nan, -inf, nan]])


@pytest.mark.parametrize("number", [nan, inf])
def test_a_weight_that_is_not_finite_meets_what_is_specified_only(number: float) -> None:
    mask = torch.rand(40, 3, generator=torch.Generator().manual_seed(0)) < 0.5
    x = torch.where(mask, torch.ones(40, 3), nan)
    w = torch.ones(5, 3)
    w[2, 1] = number
    found = F.linear(mg.masked(x, mask), w)
    expected = torch.where(mask[:, None], x[:, None] * w, 0).sum(-1)
    torch.testing.assert_close(found.filled(0.0), expected, equal_nan=True)


def test_an_infinite_weight_gives_padding_no_gradient() -> None:
    values, weight = torch.randn(3, 2, requires_grad=True), torch.tensor([[1.0, 1.0], [1.0, inf]])
    F.linear(mg.masked(values, torch.tensor([[True], [True], [False]]).expand(3, 2)), weight).sum().backward()
    assert values.grad[2].tolist() == [0, 0]
