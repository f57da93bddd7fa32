"""A new layout is a pattern and a record of how it is stored: nothing else needs to know it.

The toy here stores the main diagonal of a matrix. Its layout has the name of one that torch has, and nobody uses.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.patterns import PatternFacts, StoredPattern
from maskgrad.patterns.conversion import STORAGES, Storage
from tests.unit.patterns.suite import LayoutSuite

LAYOUT = torch._mkldnn


class DiagonalPattern(StoredPattern):
    """The first entries of the main diagonal; ``places`` counts them."""

    __slots__ = ("places",)

    layout = LAYOUT

    def __init__(self, places: Tensor, sizes: tuple[int, ...]) -> None:
        self.places, self.sizes = places, sizes

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.places,)

    def facts(self) -> PatternFacts:
        return PatternFacts("_mkldnn", self.sizes)

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


DIAGONAL = torch.eye(4, 5).bool()


class TestDiagonal(LayoutSuite):
    layout = LAYOUT
    masks: ClassVar = {
        "some": DIAGONAL & (torch.arange(5) != 1),
        "nothing": DIAGONAL & False,
        "all": DIAGONAL,
        "one": DIAGONAL & (torch.arange(5) == 2),
        "no rows": DIAGONAL[:0],
    }
    refused: ClassVar = {
        "what lies beside it": (
            lambda: mg.masked(torch.ones(2, 2)).to_sparse(layout=LAYOUT),
            ValueError,
            "a diagonal holds",
        )
    }
    turned = torch.sparse_coo
    is_filed = False

    def twin(self, mask: Tensor) -> Tensor:
        return DIAGONAL & (torch.arange(5) != 2)
