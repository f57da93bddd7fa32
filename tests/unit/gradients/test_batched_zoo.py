"""batched_grad against a double loop on all of torch.nn: first and second order, coupled or not."""

from __future__ import annotations

import itertools
import re
import warnings

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from tests.unit.gradients.module_zoo import ABSENT, Specimen, graph_of, specimens, whole_jacobian

D = torch.float64
ZOO = list(specimens())


def diagonal(whole: Tensor) -> Tensor:
    """(B, k, B, *I) -> (B, k, *I)."""
    return torch.stack([whole[b, :, b] for b in range(len(whole))])


def is_coupled(whole: Tensor) -> bool:
    blocks = [whole[b, :, c] for b in range(len(whole)) for c in range(len(whole)) if b != c]
    return bool((torch.stack(blocks).nan_to_num() != 0).any())


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
@pytest.mark.parametrize(
    "specimen", [one for one in ZOO if "," not in one.name or one.name.endswith(", 0")], ids=str
)
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


def test_zoo_is_no_empty_shell() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {one.name.split(",")[0].strip() for one in ZOO if graph_of(one) is not None}
    assert {one.name.split(",")[0].strip() for one in ZOO} - found == set()
