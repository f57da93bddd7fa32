"""Narrow columns and narrow rows."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg


@pytest.mark.parametrize("position", [0, 77, 9_983])
def test_nan_is_the_extremum_wherever_it_stands(position: int) -> None:
    values, mask = torch.randn(9_984, 3), torch.ones(9_984, 3, dtype=torch.bool)
    values[position, 1] = float("nan")
    values[-1, 0] = float("inf")
    x = mg.masked(values, mask)
    assert x.amax(0).isnan().filled(False).tolist() == [False, True, False]
    assert x.argmax(0).filled(-1).tolist() == values.argmax(0).tolist()


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
