"""Reductions: torch's result on what is left; of nothing, unspecified or a number, with gradient zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, nan, poisoned

X = [[1.0, None, 4.0], [None, None, None], [2.0, 3.0, None]]


def test_all_dimensions_by_name_stay_masked() -> None:
    """The type of a result depends on how a function is called, never on the rank of what it is called with."""
    assert_entries(poisoned([None, None]).sum(0), None)
    assert isinstance(poisoned([1.0, None]).mean(0), mg.MaskedTensor)
    assert isinstance(poisoned(X).mean((0, 1)), mg.MaskedTensor)
    assert isinstance(poisoned(X).mean((0, 1), keepdim=True), mg.MaskedTensor)
    assert isinstance(poisoned(X).amax(), mg.MaskedTensor)


@pytest.mark.parametrize("dim", [(), [], None])
def test_no_dimension_named_is_all_of_them(dim: Any) -> None:
    x = poisoned([[None, None]], requires_grad=True)
    for name, number in (("sum", 0.0), ("mean", nan), ("var", nan), ("std", nan)):
        assert_nothing(getattr(x, name)(dim), number, x)
        assert_nothing(getattr(mg.functional, name)(x._values, dim, mask=x.mask), number, x)
    assert_nothing(torch.linalg.vector_norm(x, 2, dim), 0.0, x)
    assert_nothing(torch.norm(x, 2, dim), 0.0, x)
    scalar = poisoned(None, requires_grad=True)
    assert_nothing(scalar.mean(dim), nan, scalar)
    assert_entries(scalar.mean(0), None)


@pytest.mark.parametrize("length", [4, 60])
@pytest.mark.parametrize("name", ["var", "std"])
def test_no_estimate_from_one_infinity_has_no_second_derivative(name: str, length: int) -> None:
    values = torch.randn(3, length, dtype=torch.float64)
    values[1, 2] = torch.inf
    mask = torch.ones(3, length, dtype=torch.bool)
    mask[1] = torch.arange(length) == 2
    leaf = values.requires_grad_()
    (first,) = torch.autograd.grad(
        getattr(mg.masked(leaf, mask), name)(1).filled(0.0).sum(), leaf, create_graph=True
    )
    (second,) = torch.autograd.grad((first * first).sum(), leaf)
    assert torch.equal(first[1], torch.zeros_like(first[1]))
    assert torch.equal(second[1], torch.zeros_like(second[1]))
    assert second.isfinite().all()


def test_variance_far_from_zero_is_stable() -> None:
    assert_entries(poisoned([1e6 + 1, None, 1e6 + 3], torch.float32).var(), 2.0)
