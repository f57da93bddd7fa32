"""Sets of places, whatever stores them."""

from __future__ import annotations

import itertools

import pytest
import torch

from maskgrad.patterns import BooleanPattern, Pattern, algebra
from maskgrad.patterns.conversion import LAYOUTS, pattern_of_places
from tests.poison import on

A, B = on([1, 1, 0], [0, 1, 0]), on([1, 0, 1], [0, 1, 0])


def stored(mask: torch.Tensor, layout: torch.layout) -> Pattern:
    if layout == torch.strided:
        return BooleanPattern(mask)
    blocksize = (1, 1) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return pattern_of_places(mask.nonzero().T, tuple(mask.shape), layout, blocksize)[0]


@pytest.mark.parametrize(("first", "second"), [*itertools.product(LAYOUTS, LAYOUTS)], ids=str)
def test_patterns_are_equal_if_they_specify_the_same_places(
    first: torch.layout, second: torch.layout
) -> None:
    a, b = stored(A, first), stored(B, second)
    assert not algebra.equal(a, b)
    assert not algebra.equal(a, stored(A & B, second))
    assert algebra.equal(a, stored(A, second))
    assert torch.equal(a.mask, A)


def test_places_are_looked_up() -> None:
    present, where = algebra.find(torch.tensor([5, 0, 3, 9]), torch.tensor([0, 3, 5]))
    assert present.tolist() == [True, True, True, False]
    assert where[:3].tolist() == [2, 0, 1]
    assert not algebra.find(torch.tensor([1]), torch.tensor([], dtype=torch.int64))[0].any()


def test_shapes_must_be_equal() -> None:
    with pytest.raises(ValueError, match=r"same shape, found \(2, 3\) and \(3, 2\)"):
        algebra.equal(BooleanPattern(A), BooleanPattern(A.T))
