"""What formulas compute with under ``use_kernels("invariant")``: values, shapes and derivatives are PyTorch's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.kernels import invariant
from maskgrad.kernels.selection import is_invariant

X = torch.linspace(-2, 3, 2 * 3 * 4, dtype=torch.float64).reshape(2, 3, 4)
SMALL = X[:1]


@pytest.fixture(autouse=True)
def mode() -> Iterator[None]:
    with mg.use_kernels("invariant"):
        yield


def test_the_mode_ends_with_its_block() -> None:
    with mg.use_kernels("reference"):
        assert not is_invariant()
    assert is_invariant()


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dims", [(0,), (1,), (-1,), (0, 1), (0, 2), (2, 1), (0, 1, 2)])
def test_reductions_along_any_dimensions(dims: tuple[int, ...], keepdim: bool) -> None:
    expected = X.sum(dims, keepdim)
    torch.testing.assert_close(invariant.sum_along(X, dims, keepdim), expected)
    flat = X.movedim(dims, tuple(range(-len(dims), 0))).flatten(-len(dims)).prod(-1)
    torch.testing.assert_close(invariant.tree_product(X, dims, keepdim), flat.reshape(expected.shape))


def test_nothing_adds_up_to_zero_and_multiplies_to_one() -> None:
    empty = torch.ones(3, 0)
    assert invariant.sum_along(empty, (1,)).tolist() == [[0.0]] * 3
    assert invariant.tree_product(empty, (1,), False).tolist() == [1.0] * 3
    assert invariant.sum_along(empty, (0,), False).shape == (0,)


def test_a_sum_of_small_terms_is_rounded_once() -> None:
    ones = torch.ones(5000, dtype=torch.bfloat16)
    assert mg.masked(ones, ones > 0).sum(0).item() == torch.tensor(5000.0).bfloat16()


def test_products_of_any_rank() -> None:
    shapes = [(4,), (3, 4), (2, 3, 4)], [(4,), (4, 5), (2, 4, 5)]
    for left, right in itertools.product(*shapes):
        a, b = torch.randn(left), torch.randn(right)
        torch.testing.assert_close(invariant.product(a, b), a @ b)


def test_an_elementwise_function_of_several_operands_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariant, "PIECE", 64)
    a, b = torch.rand(70, 3), torch.rand(3)
    torch.testing.assert_close(invariant.in_pieces(torch.atan2, a, b), torch.atan2(a, b))
    for part, expected in zip(invariant.in_pieces(torch.frexp, a), torch.frexp(a), strict=True):
        torch.testing.assert_close(part, expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: invariant.sum_along(x.exp(), (1,)),
        lambda x: invariant.tree_product(x, (2,), False),
        lambda x: invariant.cumulative_product(x, 1),
        lambda x: invariant.product(x, x.mT),
        lambda x: mg.masked(x, SMALL < 2).softmax(1).filled(0.0),
        lambda x: mg.masked(x, SMALL < 2).var(1).filled(0.0),
        lambda x: mg.masked(x, SMALL < 2).norm(dim=2).filled(0.0),
    ],
    ids=["sum", "product", "running product", "matrices", "softmax", "variance", "norm"],
)
def test_derivatives_of_both_orders(function: Callable[[Tensor], Tensor]) -> None:
    x = (SMALL * 1.01 + 0.013).requires_grad_()
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)
