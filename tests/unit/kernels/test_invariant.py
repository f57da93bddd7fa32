"""What formulas compute with under ``use_kernels("invariant")``: values, shapes and derivatives are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.kernels import invariant
from maskgrad.kernels.selection import is_invariant

SMALL = torch.linspace(-2, 0.3, 12, dtype=torch.float64, device="cpu").reshape(1, 3, 4)
ODD = (torch.arange(12, device="cpu") % 5 > 0).reshape(1, 3, 4)


@pytest.fixture(autouse=True)
def mode() -> Iterator[None]:
    with mg.use_kernels("invariant"):
        yield


def test_the_mode_ends_with_its_block() -> None:
    with mg.use_kernels("reference"):
        assert not is_invariant()
    assert is_invariant()


def test_nothing_adds_up_to_zero_and_multiplies_to_one() -> None:
    empty = torch.ones(3, 0)
    assert invariant.sum_along(empty, (1,)).tolist() == [[0.0]] * 3
    assert invariant.tree_product(empty, (1,), False).tolist() == [1.0] * 3


def test_a_sum_of_small_terms_is_rounded_once() -> None:
    ones = torch.ones(5000, dtype=torch.bfloat16)
    assert mg.masked(ones, ones > 0).sum(0).item() == torch.tensor(5000.0).bfloat16()


def test_an_elementwise_function_of_several_operands_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariant, "PIECE", 64)
    a, b = torch.rand(70, 3), torch.rand(3)
    torch.testing.assert_close(invariant.in_pieces(torch.atan2, a, b), torch.atan2(a, b))
    for part, expected in zip(invariant.in_pieces(torch.frexp, a), torch.frexp(a), strict=True):
        torch.testing.assert_close(part, expected)


LINES: list[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = [
    (lambda x: invariant.sum_along(x.exp(), (2, 0), False), lambda x: x.exp().sum((0, 2))),
    (lambda x: invariant.tree_product(x, (-1, 1), True), lambda x: x.prod(1, True).prod(2, True)),
    (lambda x: invariant.tree_product(x, (2, 0), False), lambda x: x.prod(2).prod(0)),
    (lambda x: invariant.cumulative_product(x, 1), lambda x: x.cumprod(1)),
    (lambda x: invariant.product(x, x.mT), lambda x: x @ x.mT),
    (lambda x: invariant.product(x, x[0, 0]), lambda x: x @ x[0, 0]),
    (lambda x: invariant.product(x, x[0].mT), lambda x: x @ x[0].mT),
    (lambda x: invariant.product(x[0, 0], x.mT), lambda x: x[0, 0] @ x.mT),
    (lambda x: mg.masked(x, ODD).softmax(1).filled(0.0),) * 2,
    (lambda x: mg.masked(x, ODD).var(1).filled(0.0),) * 2,
    (lambda x: mg.masked(x, ODD).norm(dim=2).filled(0.0),) * 2,
]


@pytest.mark.parametrize(("function", "plain"), LINES)
def test_values_and_derivatives_are_those_of_pytorch(
    function: Callable[[Tensor], Tensor], plain: Callable[[Tensor], Tensor]
) -> None:
    x = (SMALL * 1.01 + 0.013).requires_grad_()
    with mg.use_kernels("reference"):
        expected = plain(x)
    torch.testing.assert_close(function(x), expected)
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)
