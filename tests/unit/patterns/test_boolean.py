"""The Boolean pattern."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import maskgrad as mg
from maskgrad.mode import can_read
from maskgrad.patterns import BooleanPattern
from tests.poison import on


def test_the_pattern_knows_its_layout_and_shows_its_mask() -> None:
    assert BooleanPattern(on(1)).layout is torch.strided
    assert repr(BooleanPattern(on(1, 0))) == "BooleanPattern(tensor([ True, False]))"


def test_numbers_are_looked_at_only_where_it_is_harmless() -> None:
    assert can_read(torch.zeros(2))
    assert not can_read(torch.zeros(2, device="meta"))
    seen = []

    def note(row: torch.Tensor) -> torch.Tensor:
        seen.append(can_read(row))
        return row

    torch.vmap(note)(torch.zeros(2, 2))
    assert seen == [False]


@pytest.mark.parametrize("shape", [(3, 4), (3, 1), (1, 4)])
def test_masks_are_freed(shape: tuple[int, ...]) -> None:
    mask = torch.ones(shape).bool()
    x = mg.masked(torch.ones(3, 4), mask)
    gone = [weakref.ref(mask), weakref.ref(x.mask), weakref.ref(x.clone().mask)]
    del x, mask
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
