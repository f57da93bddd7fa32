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
def test_sets_of_places_are_those_of_the_masks(first: torch.layout, second: torch.layout) -> None:
    a, b = stored(A, first), stored(B, second)
    for function, mask in (
        (algebra.intersection, A & B),
        (algebra.union, A | B),
        (algebra.difference, A & ~B),
    ):
        assert function(a, b).tolist() == mask.reshape(-1).nonzero().squeeze(1).tolist()
    assert not algebra.equal(a, b)
    assert algebra.equal(a, stored(A, second))
    assert not algebra.is_subset(a, b)
    assert algebra.is_subset(stored(A & B, first), b)
    assert algebra.is_subset(stored(A & ~A, first), b)
    assert torch.equal(stored(A, first).mask, A)


def test_shapes_must_be_equal() -> None:
    with pytest.raises(ValueError, match=r"same shape, found \(2, 3\) and \(3, 2\)"):
        algebra.union(BooleanPattern(A), BooleanPattern(A.T))
