"""gradient_penalty against a double loop on all of torch.nn: its value, and its gradient, the second derivative."""

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
    graph_with_parameters,
    is_coupled,
    specimens,
    variant_zero,
    whole_jacobian,
)

ZOO = list(filter(variant_zero, specimens()))


def same_slopes(found: Tensor, expected: Tensor, by: list[Tensor]) -> None:
    """Equal values, and equal gradients or the same refusal of PyTorch's."""
    torch.testing.assert_close(found, expected, equal_nan=True)
    try:
        wanted = slopes(expected, by)
    except RuntimeError as refused:  # a few modules have no second derivatives in PyTorch, with us neither
        with pytest.raises(RuntimeError, match=re.escape(str(refused)[:30])):
            slopes(found, by)
        return
    torch.testing.assert_close(slopes(found, by), wanted, equal_nan=True)


def slopes(number: Tensor, by: list[Tensor]) -> list[Tensor]:
    if not number.requires_grad:
        return [torch.zeros_like(x) for x in by]
    found = torch.autograd.grad(number, by, retain_graph=True, materialize_grads=True)
    return [gradient.to_dense() for gradient in found]


@pytest.mark.nondeterministic
@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_zoo(specimen: Specimen) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what modules say about themselves
        graph = graph_with_parameters(specimen)
    if graph is None:
        return
    y, x, parameters = graph
    y = y[:, :2]
    try:
        whole = whole_jacobian(y, x, create_graph=True)
    except RuntimeError as refused:
        with pytest.raises(RuntimeError, match=re.escape(str(refused)[:30])):
            mg.gradient_penalty(y, x, per_sample=True)
        return
    by = [x, *parameters]

    coupling = "check"
    if is_coupled(whole):
        with pytest.raises(mg.CoupledSamplesError, match="influence each other"):
            mg.gradient_penalty(y, x, per_sample=True)
        coupling = "exact"
    squares = diagonal(whole).flatten(1).square().sum(1)
    found = mg.gradient_penalty(y, x, per_sample=True, coupling=coupling)
    same_slopes(found, squares.mean(), by)
    if bool((squares > 1e-9).all()):
        found = mg.gradient_penalty(
            y, x, per_sample=True, target=0.3, power=2, reduction="sum", coupling=coupling
        )
        same_slopes(found, (squares.sqrt() - 0.3).square().sum(), by)

    # One number for everything: every derivative by itself, from the rows of the whole Jacobian.
    weights = torch.linspace(1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    gradient = torch.einsum("bk,bk...->...", weights, whole)
    same_slopes(mg.gradient_penalty((y * weights).sum(), x), gradient.square().sum(), by)


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient of rows as a dense one, differentiably."""
    if not gradient.is_sparse:
        return gradient
    rows = gradient.coalesce()
    return torch.zeros(rows.shape, dtype=rows.dtype).index_put(tuple(rows.indices()), rows.values())


@pytest.mark.nondeterministic
@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_zoo_by_parameters(specimen: Specimen) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = graph_with_parameters(specimen)
    if graph is None or not graph[2]:
        return
    y, x, parameters = graph
    y = y[:, :2].sin()
    rows = [
        torch.autograd.grad(one, parameters, create_graph=True, allow_unused=True) for one in y.reshape(-1)
    ]
    columns = [[dense(part) for part in column if part is not None] for column in zip(*rows, strict=True)]
    if not any(columns):
        with pytest.raises(ValueError, match="depends on none"):
            mg.gradient_penalty(y.sum(), parameters)
        return
    squares = [torch.stack(column).sum(0).square().sum() for column in columns if column]
    same_slopes(mg.gradient_penalty(y.sum(), parameters), torch.stack(squares).sum(), [x, *parameters])
