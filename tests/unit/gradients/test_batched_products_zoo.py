"""batched_vjp and batched_jvp against a double loop on all of torch.nn: first and second order, coupled or not."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.unit.gradients.module_zoo import (
    Specimen,
    diagonal,
    graph_of,
    is_coupled,
    specimens,
    variant_zero,
    whole_jacobian,
)

ZOO = list(specimens())
#: vectors for each sample
VECTORS = 2


def quiet_graph(specimen: Specimen) -> tuple[Tensor, Tensor] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what modules say about themselves
        return graph_of(specimen)


def vectors_for(y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Cotangents (B, N, k) and tangents (B, N, *I)."""
    return (
        torch.randn(len(y), VECTORS, *y.shape[1:], dtype=y.dtype),
        torch.randn(len(x), VECTORS, *x.shape[1:], dtype=x.dtype),
    )


def from_the_left(v: Tensor, jacobian: Tensor) -> Tensor:
    """(B, N, k) times (B, k, *I)."""
    return torch.einsum("bnk,bki->bni", v, jacobian.flatten(2)).unflatten(2, jacobian.shape[2:])


def from_the_right(jacobian: Tensor, u: Tensor) -> Tensor:
    """(B, k, *I) times (B, N, *I)."""
    return torch.einsum("bki,bni->bnk", jacobian.flatten(2), u.flatten(2))


@pytest.mark.nondeterministic
@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_zoo(specimen: Specimen) -> None:
    graph = quiet_graph(specimen)
    if graph is None:
        return
    y, x = graph
    whole = whole_jacobian(y, x)
    jacobian = diagonal(whole)
    v, u = vectors_for(y, x)
    coupling = "check"
    if is_coupled(whole):
        for refused in (lambda: mg.batched_vjp(y, x, v), lambda: mg.batched_jvp(y, x, u)):
            with pytest.raises(mg.CoupledSamplesError, match="influence each other"):
                refused()
        coupling = "exact"
    for chunk_size in (None, 1):
        found = mg.batched_vjp(y, x, v, chunk_size=chunk_size, coupling=coupling)
        torch.testing.assert_close(found, from_the_left(v, jacobian), equal_nan=True)
        moved = mg.batched_jvp(y, x, u, chunk_size=chunk_size, coupling=coupling)
        torch.testing.assert_close(moved, from_the_right(jacobian, u), equal_nan=True)


@pytest.mark.nondeterministic
@pytest.mark.parametrize("specimen", list(filter(variant_zero, ZOO)), ids=str)
def test_zoo_of_second_order(specimen: Specimen) -> None:
    graph = quiet_graph(specimen)
    if graph is None:
        return
    y, x = graph
    y = y[:, :2]
    try:
        whole = whole_jacobian(y, x, create_graph=True)
    except RuntimeError:
        return  # no derivative that has a graph in PyTorch; test_batched_zoo asks what we say
    coupling = "exact" if is_coupled(whole) else "check"
    jacobian = diagonal(whole)
    v, u = (vector.requires_grad_() for vector in vectors_for(y, x))
    found = mg.batched_vjp(y, x, v, create_graph=True, coupling=coupling)
    moved = mg.batched_jvp(y, x, u, create_graph=True, coupling=coupling)
    torch.testing.assert_close(moved, from_the_right(jacobian, u), equal_nan=True)
    try:
        by_cotangents = slopes(from_the_left(v, jacobian), x, v)
        by_tangents = slopes(from_the_right(jacobian, u), x, u)
    except RuntimeError as refused:  # a few modules have no second derivatives in PyTorch, with us neither
        for product, by in ((found, v), (moved, u)):
            with pytest.raises(RuntimeError, match=re.escape(str(refused)[:30])):
                slopes(product, x, by)
        return
    torch.testing.assert_close(slopes(moved, x, u), by_tangents, equal_nan=True)
    cotangent = v[:, 0]
    (by_torch,) = torch.autograd.grad(y, x, cotangent, create_graph=True, materialize_grads=True)
    try:
        slopes(by_torch, cotangent)
    except RuntimeError as refused:  # a gradient with respect to cotangents is missing in PyTorch, too
        with pytest.raises(RuntimeError, match=re.escape(str(refused)[:30])):
            slopes(found, v)
        return
    torch.testing.assert_close(slopes(found, x, v), by_cotangents, equal_nan=True)


def slopes(product: Tensor, *by: Tensor) -> tuple[Tensor, ...]:
    """The gradient of a number that tells all entries apart."""
    weights = torch.linspace(1, 2, product.numel(), dtype=product.dtype).reshape(product.shape)
    total = (product**2 * weights).sum()
    return torch.autograd.grad(total, by, retain_graph=True, materialize_grads=True)
