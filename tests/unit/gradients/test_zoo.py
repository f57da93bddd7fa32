"""Derivatives of whole batches on modules of torch.nn, against a double loop: both orders, coupled or not."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.unit.gradients.module_zoo import (
    Specimen,
    diagonal,
    graph_with_parameters,
    is_coupled,
    specimens,
    variant_zero,
    whole_jacobian,
)

ZOO = list(specimens())
FIRST = list(filter(variant_zero, ZOO))


def quietly(call: Callable[..., Any], *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what modules say about themselves
        return call(*args)


def refused_if_coupled(whole: Tensor, call: Callable[[], Any]) -> bool:
    """Whether samples influence each other, which ``call`` says then."""
    if not is_coupled(whole):
        return False
    with pytest.raises(mg.CoupledSamplesError, match="influence each other"):
        call()
    return True


@pytest.mark.nondeterministic
@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_first_order(specimen: Specimen) -> None:
    graph = quietly(graph_with_parameters, specimen)
    if graph is None:
        return
    y, x, _ = graph
    whole = whole_jacobian(y, x)
    if refused_if_coupled(whole, lambda: mg.batched_grad(y, x)):
        return
    torch.testing.assert_close(mg.batched_grad(y, x), diagonal(whole), equal_nan=True)


def slopes(number: Tensor, by: list[Tensor]) -> list[Tensor]:
    """The gradient of a number that tells all entries apart."""
    if not number.requires_grad:
        return [torch.zeros_like(x) for x in by]
    weights = torch.linspace(1, 2, number.numel(), dtype=number.dtype).reshape(number.shape)
    total = (number**2 * weights).sum() if number.ndim else number
    found = torch.autograd.grad(total, by, retain_graph=True, materialize_grads=True)
    return [gradient.to_dense() for gradient in found]


def same_slopes(found: Tensor, expected: Tensor, by: list[Tensor]) -> None:
    """Equal values, and equal gradients or the same refusal of PyTorch's."""
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert found.requires_grad or not expected.requires_grad
    try:
        wanted = slopes(expected, by)
    except RuntimeError as refused:  # a few modules have no second derivatives in PyTorch, with us neither
        with pytest.raises(RuntimeError, match=re.escape(str(refused)[:30])):
            slopes(found, by)
        return
    torch.testing.assert_close(slopes(found, by), wanted, equal_nan=True)


@pytest.mark.nondeterministic
@pytest.mark.parametrize("specimen", FIRST, ids=str)
def test_second_order(specimen: Specimen) -> None:
    graph = quietly(graph_with_parameters, specimen)
    if graph is None:
        return
    y, x, parameters = graph
    y = y[:, :2]
    try:
        whole = whole_jacobian(y, x, create_graph=True)
    except RuntimeError as refused:
        for call in (
            lambda: mg.batched_grad(y, x, create_graph=True),
            lambda: mg.gradient_penalty(y, x, per_sample=True),
            lambda: mg.batched_hessian(y, x, coupling="independent"),
        ):
            with pytest.raises(RuntimeError, match=re.escape(str(refused)[:30])):
                call()
        return
    by = [x, *parameters]
    # One number for everything: every derivative by itself, from the rows of the whole Jacobian.
    weights = torch.linspace(1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    gradient = torch.einsum("bk,bk...->...", weights, whole)
    same_slopes(mg.gradient_penalty((y * weights).sum(), x), gradient.square().sum(), by)
    if refused_if_coupled(whole, lambda: mg.gradient_penalty(y, x, per_sample=True)):
        return
    jacobian = diagonal(whole)
    same_slopes(mg.batched_grad(y, x, create_graph=True), jacobian, [x])
    if jacobian.requires_grad:
        first = jacobian[:, 0].flatten(1)[:, 0].sum()
        try:
            row = torch.autograd.grad(first, x, retain_graph=True, materialize_grads=True)[0]
        except RuntimeError as refused:  # no second derivatives in PyTorch
            with pytest.raises(RuntimeError, match=re.escape(str(refused)[:30])):
                mg.batched_hessian(y[:, :1], x, coupling="independent")
            return
        hessian = mg.batched_hessian(y[:, :1], x).reshape(len(x), -1, *x.shape[1:])
        torch.testing.assert_close(hessian[:, 0], row, equal_nan=True)
    squares = jacobian.flatten(1).square().sum(1)
    same_slopes(mg.gradient_penalty(y, x, per_sample=True), squares.mean(), by)
    if bool((squares > 1e-9).all()):
        norms = mg.gradient_penalty(y, x, per_sample=True, target=0.3, reduction="sum")
        same_slopes(norms, (squares.sqrt() - 0.3).square().sum(), by)
