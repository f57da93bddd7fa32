"""Identities whose gradient is masked or reversed: alone, twice, transformed, compiled, on every layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jvp, vmap

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, leaf, nan, on
from tests.unit.gradients.custom_functions import sparse

#: As a factor of the gradient: 1 or 0 for each entry.
both = pytest.mark.parametrize(
    "surgery",
    [lambda x, factor: mg.mask_gradient(x, factor > 0), lambda x, factor: mg.reverse_gradient(x, -factor)],
    ids=["mask", "reverse"],
)


def factors(*numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


@both
def test_values_are_kept_bit_for_bit_and_both_derivatives_are_right(surgery: Any) -> None:
    x = leaf(1.0, nan, -inf, -0.0)
    y = surgery(x, factors(1, 0, 0, 1))
    assert torch.equal(y.view(torch.int64), x.view(torch.int64))
    assert gradient(y, x).tolist() == [1.0, 0.0, 0.0, 1.0]
    x = leaf(2.0, 3.0)
    (first,) = torch.autograd.grad((surgery(x, factors(1, 0)) ** 3).sum(), x, create_graph=True)
    assert first.tolist() == [12.0, 0.0]
    assert gradient(first, x).tolist() == [12.0, 0.0]


@both
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_bsc])
def test_masked_tensors_keep_layout_and_pattern(surgery: Any, layout: torch.layout) -> None:
    x = (sparse(torch.sparse_coo).to_dense() if layout == torch.strided else sparse(layout)).requires_grad_()
    y = surgery(x, factors([1, 0, 1, 1], [1, 1, 0, 1]))
    assert y.layout == layout
    assert_entries(y.to_dense(), [[1.0, 2.0, None, None], [None, None, 3.0, 0.0]])
    (y + 1).square().sum().backward()
    assert_entries(x.grad.to_dense(), [[4.0, 0.0, None, None], [None, None, 0.0, 2.0]])


@both
def test_transformed(surgery: Any) -> None:
    def f(v: Tensor, m: Tensor) -> Tensor:
        return (surgery(v, m) ** 2).sum()

    x, m = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert vmap(grad(f))(x, m).tolist() == [[2.0, 0.0], [0.0, 8.0]]
    assert jvp(lambda v: f(v, m), (x,), (torch.ones(2, 2),))[1].item() == 10.0
    assert hessian(f)(x[0], m[0]).tolist() == [[2.0, 0.0], [0.0, 0.0]]


def test_masked_gradients_are_selected_and_never_multiplied() -> None:
    x = leaf(1.0, 2.0, 3.0)
    y = mg.mask_gradient(x, on(1, 0, 1))
    (got,) = torch.autograd.grad(y, x, torch.tensor([5.0, nan, 6.0]).double())
    assert got.tolist() == [5.0, 0.0, 6.0]
    assert mg.mask_gradient(torch.tensor([1, 2]), on(1, 0)).tolist() == [1, 2]  # has no gradient


ONES = torch.ones(2)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: mg.mask_gradient([1.0], on(1)), TypeError, "x must be a torch.Tensor or a MaskedTensor, found list"),
        (lambda: mg.mask_gradient(ONES.to_sparse(), on(1)), TypeError, "from_sparse"),
        (lambda: mg.mask_gradient(ONES, ONES), TypeError, "mask must be a Boolean torch.Tensor"),
        (lambda: mg.mask_gradient(ONES, on(1, 1, 1)), ValueError, "mask must have as many dimensions"),
        (lambda: mg.reverse_gradient(1.0), TypeError, "x must be a torch.Tensor or a MaskedTensor, found float"),
        (lambda: mg.reverse_gradient(ONES.to_sparse()), TypeError, "from_sparse"),
        (lambda: mg.reverse_gradient(ONES, "1"), TypeError, "scale must be a number or a torch.Tensor, found str"),
        (lambda: mg.reverse_gradient(ONES, True), TypeError, "found bool"),
        (lambda: mg.reverse_gradient(ONES, nan), ValueError, "scale must be finite, found nan"),
        (lambda: mg.reverse_gradient(ONES, torch.ones(3)), ValueError, r"broadcast to the shape of x, \(2,\)"),
        (lambda: mg.reverse_gradient(ONES, leaf(1.0)[0]), ValueError, r"use scale.detach\(\)"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
