"""The Boolean pattern."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import maskgrad as mg
from maskgrad.patterns import BooleanPattern
from tests.poison import on


def test_the_pattern_shows_its_mask() -> None:
    assert repr(BooleanPattern(on(1, 0))) == "BooleanPattern(tensor([ True, False]))"


@pytest.mark.parametrize("shape", [(3, 4), (3, 1)])
def test_masks_are_freed(shape: tuple[int, ...]) -> None:
    mask = torch.ones(shape).bool()
    x = mg.masked(torch.ones(3, 4), mask)
    gone = [weakref.ref(mask), weakref.ref(x.mask), weakref.ref(x.clone().mask)]
    del x, mask
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
