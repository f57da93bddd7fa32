"""A new layout is a pattern and a record of how it is stored: nothing else needs to know it.

The toy here stores the main diagonal of a matrix. Its layout has the name of one that torch has, and nobody uses.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import maskgrad as mg
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.patterns import PatternFacts, StoredPattern
from maskgrad.patterns.conversion import STORAGES, Storage

LAYOUT = torch._mkldnn


class DiagonalPattern(StoredPattern):
    """The first entries of the main diagonal; ``places`` counts them."""

    __slots__ = ("places",)

    def __init__(self, places: Tensor, sizes: tuple[int, ...]) -> None:
        self.places, self.sizes = places, sizes

    @property
    def layout(self) -> torch.layout:
        return LAYOUT

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.places,)

    def facts(self) -> PatternFacts:
        return PatternFacts("_mkldnn", self.sizes)

    def rebuilt(self, tensors: tuple[Any, ...]) -> DiagonalPattern:
        return DiagonalPattern(tensors[0], self.sizes)

    def coordinates(self) -> Tensor:
        return torch.stack([self.places, self.places])


def _of_places(coordinates: Tensor, sizes: tuple[int, ...], *_: Any) -> tuple[StoredPattern, Tensor]:
    if bool((coordinates[0] != coordinates[1]).any()):
        raise ValueError("a diagonal holds entries (i, i) only")
    order = torch.argsort(coordinates[0])
    return DiagonalPattern(coordinates[0, order], sizes), order


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Storage(("places",), lambda facts, places: DiagonalPattern(places, facts.sizes), _of_places)
    monkeypatch.setitem(STORAGES, "_mkldnn", record)


def _pair() -> tuple[MaskedTensor, MaskedTensor, Tensor]:
    """The diagonal, the same on a Boolean mask with garbage beside it, and the entries, which have a gradient."""
    entries = torch.tensor([3.0, -1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    stored = MaskedTensor(entries, DiagonalPattern(torch.arange(4), (4, 5)))
    beside = torch.full((4, 5), math.nan, dtype=torch.float64)
    mask = torch.eye(4, 5, dtype=torch.bool)
    return stored, mg.masked(beside.masked_scatter(mask, entries), mask), entries


OPERATIONS = {
    "exp": lambda x: x.exp(),
    "times two": lambda x: x * 2,
    "with itself": lambda x: x + x.square(),
    "sum": lambda x: x.sum(),
    "mean along": lambda x: x.mean(1),
    "variance": lambda x: x.var(0, correction=0),
    "maximum": lambda x: x.amax(1),
    "softmax": lambda x: x.softmax(0),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=0),
    "transposed": lambda x: x.t(),
    "product": lambda x: x @ torch.arange(15.0, dtype=torch.float64).reshape(5, 3),
    "row": lambda x: x[1],
    "selected": lambda x: x.index_select(0, torch.tensor([2, 0])),
    "joined": lambda x: torch.cat([x, x]),
    "loss": lambda x: torch.nn.functional.mse_loss(x, torch.ones(4, 5, dtype=torch.float64)),
}


@pytest.mark.every
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_a_boolean_mask(name: str) -> None:
    stored, boolean, entries = _pair()
    ours, expected = OPERATIONS[name](stored), OPERATIONS[name](boolean)
    if isinstance(expected, MaskedTensor):
        ours, expected = ours.to_dense() if isinstance(ours, MaskedTensor) else ours, expected.to_dense()
        assert torch.equal(ours.mask, expected.mask)
        ours, expected = ours.filled(0.0), expected.filled(0.0)
    torch.testing.assert_close(ours, expected)
    gradients = [torch.autograd.grad(y.square().sum(), entries)[0] for y in (ours, expected)]
    torch.testing.assert_close(*gradients)


def test_it_is_stored_moved_and_converted() -> None:
    stored, boolean, _ = _pair()
    assert stored.layout is LAYOUT
    assert torch.equal(stored.mask, boolean.mask)
    back = boolean.detach().to_sparse(layout=LAYOUT)
    assert isinstance(back._pattern, DiagonalPattern)
    assert torch.equal(back._values, stored._values)
    assert stored.detach().to_sparse(layout=torch.sparse_csr).values().tolist() == stored._values.tolist()
    leaves, tree = pytree.tree_flatten(stored)
    assert isinstance(pytree.tree_unflatten(leaves, tree)._pattern, DiagonalPattern)
    with pytest.raises(ValueError, match="a diagonal holds"):
        mg.masked(torch.ones(2, 2)).to_sparse(layout=LAYOUT)


def test_files_need_a_check() -> None:
    facts = ("_mkldnn", (4, 5), None)
    with pytest.raises(TypeError, match=r"add one in patterns/checks\.py"):
        mg.masked_tensor.tensor.rebuild_stored(torch.ones(4), facts, (torch.arange(4),))
