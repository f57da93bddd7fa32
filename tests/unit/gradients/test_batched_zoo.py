"""batched_grad and batched_hessian against a double loop on all of torch.nn: first and second order, coupled or not."""

from __future__ import annotations

import itertools
import re
import warnings

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.unit.gradients.module_zoo import (
    ABSENT,
    Specimen,
    diagonal,
    graph_of,
    is_coupled,
    specimens,
    variant_zero,
    whole_jacobian,
)

D = torch.float64
ZOO = list(specimens())


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.Tanh()]
    return nn.Sequential(*layers).to(D)


def test_all_of_torch_nn_is_in_the_zoo() -> None:
    classes = {
        name
        for name in dir(nn)
        if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
    }
    shown = {specimen.name.split(",")[0].removeprefix("nn.").strip() for specimen in ZOO}
    lazy = {name for name in classes if name.startswith("Lazy")}
    assert classes - shown - set(ABSENT) - lazy == set()


@pytest.mark.nondeterministic
@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_zoo(specimen: Specimen) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what modules say about themselves
        graph = graph_of(specimen)
    if graph is None:
        return
    y, x = graph
    whole = whole_jacobian(y, x)
    expected = diagonal(whole)
    if is_coupled(whole):
        with pytest.raises(mg.CoupledSamplesError, match="influence each other"):
            mg.batched_grad(y, x)
        torch.testing.assert_close(mg.batched_grad(y, x, coupling="exact"), expected)
        return
    for chunk_size in (None, 2):
        torch.testing.assert_close(mg.batched_grad(y, x, chunk_size=chunk_size), expected, equal_nan=True)


@pytest.mark.nondeterministic
@pytest.mark.parametrize("specimen", list(filter(variant_zero, ZOO)), ids=str)
def test_zoo_of_second_order(specimen: Specimen) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = graph_of(specimen)
    if graph is None:
        return
    y, x = graph
    y = y[:, :2]
    try:
        whole = whole_jacobian(y, x, create_graph=True)
    except RuntimeError as refused:
        with pytest.raises(RuntimeError, match=re.escape(str(refused)[:30])):
            mg.batched_grad(y, x, create_graph=True)
        return
    coupling = "exact" if is_coupled(whole) else "check"
    found = mg.batched_grad(y, x, create_graph=True, coupling=coupling)
    expected = diagonal(whole)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert found.requires_grad == expected.requires_grad
    if not expected.requires_grad:
        return
    try:
        wanted = slope(expected, x)
    except RuntimeError as refused:  # a few modules have no second derivatives in PyTorch, with us neither
        with pytest.raises(RuntimeError, match=re.escape(str(refused)[:30])):
            slope(found, x)
        return
    torch.testing.assert_close(slope(found, x), wanted, equal_nan=True)


def slope(jacobian: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad((jacobian**2).sum(), x, retain_graph=True, materialize_grads=True)[0]


@pytest.mark.nondeterministic
@pytest.mark.parametrize("specimen", list(filter(variant_zero, ZOO)), ids=str)
def test_zoo_of_hessians(specimen: Specimen) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = graph_of(specimen)
    if graph is None:
        return
    y, x = graph
    y = y[:, :1]
    try:
        whole = whole_jacobian(y, x, create_graph=True)
        chosen, expected = some_second_derivatives(diagonal(whole), x)
    except RuntimeError as refused:  # no second derivatives in PyTorch
        with pytest.raises(RuntimeError, match=re.escape(str(refused)[:30])):
            mg.batched_hessian(y, x, coupling="independent")
        return
    if is_coupled(whole):
        with pytest.raises(mg.CoupledSamplesError, match="influence each other"):
            mg.batched_hessian(y, x)
        found = mg.batched_hessian(y, x, coupling="exact")
    else:
        found = mg.batched_hessian(y, x)
    assert found.shape == (*y.shape, *x.shape[1:], *x.shape[1:])
    rows = found.reshape(len(x), -1, *x.shape[1:])[:, chosen]
    torch.testing.assert_close(rows, expected, equal_nan=True)


def some_second_derivatives(jacobian: Tensor, x: Tensor, number: int = 4) -> tuple[list[int], Tensor]:
    """Some rows of the Hessian of one output (B, rows, *I), one backward pass for each sample and row; and which."""
    flat = jacobian.reshape(len(x), -1)
    chosen = list(range(0, flat.shape[1], max(1, flat.shape[1] // number)))
    if not flat.requires_grad:
        return chosen, torch.zeros(len(x), len(chosen), *x.shape[1:], dtype=x.dtype)
    rows = [
        torch.stack(
            [
                torch.autograd.grad(flat[b, i], x, retain_graph=True, materialize_grads=True)[0][b]
                for i in chosen
            ]
        )
        for b in range(len(x))
    ]
    return chosen, torch.stack(rows)


def test_zoo_is_no_empty_shell() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {one.name.split(",")[0].strip() for one in ZOO if graph_of(one) is not None}
    wanted = {one.name.split(",")[0].strip() for one in ZOO}
    assert wanted - found == set()
