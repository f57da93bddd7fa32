"""Narrow columns: rows that follow each other in memory are reduced as a wide one, and merged in the end."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.kernels.cpu.partition import partition


@pytest.mark.parametrize("position", [0, 77, 9_983])
def test_nan_is_the_extremum_wherever_it_stands(position: int) -> None:
    values, mask = torch.randn(9_984, 3), torch.ones(9_984, 3, dtype=torch.bool)
    values[position, 1] = float("nan")
    values[-1, 0] = float("inf")
    x = mg.masked(values, mask)
    assert x.amax(0).isnan().filled(False).tolist() == [False, True, False]
    assert x.argmax(0).filled(-1).tolist() == values.argmax(0).tolist()


def test_which_rows_are_joined() -> None:
    def joined(*shape: int, mask: Tensor | None = None) -> int:
        values = torch.zeros(shape)
        mask = torch.zeros(shape, dtype=torch.bool) if mask is None else mask.expand(shape)
        return partition((values, mask), (len(shape) - 2,), 1024)[1].joined

    assert joined(100_000, 4) == 50
    assert joined(64, 200, 8) == 5
    assert joined(9_973, 4) == 1  # a prime number
    assert joined(100_000, 300) == 1  # wide
    assert joined(100, 4) == 1  # few
    assert joined(100_000, 4, mask=torch.zeros(100_000, 1, dtype=torch.bool)) == 1  # its rows do not follow
    assert joined(100_000, 4, mask=torch.zeros((), dtype=torch.bool)) == 50


def test_an_extremum_behind_equal_and_infinite_entries_of_padding() -> None:
    shape = (4, 500, 8)
    mask = (torch.arange(500) < torch.tensor([300, 0, 500, 33])[:, None])[..., None].expand(shape)
    for value in (-float("inf"), float("nan"), 2.0):
        values = torch.where(mask, value, float("inf"))
        x = mg.masked(values, mask)
        assert x.argmax().item() == 0
        assert x.amax((1, 2)).mask.tolist() == [True, False, True, True]
        late = values.clone()
        late[2, 499, 7] = 3.0 if value == value else value
        found = mg.masked(late, mask).argmax()
        assert found.item() == (0 if value != value else ((2 * 500) + 499) * 8 + 7)
