"""The Boolean pattern, and the check that every mask from outside passes."""

from __future__ import annotations

import pytest
import torch

from maskgrad.patterns import BooleanPattern
from maskgrad.patterns.boolean import check_mask
from maskgrad.patterns.eager import can_read_values
from tests.poison import on

CPU = torch.device("cpu")


def test_a_mask_of_the_right_shape_is_returned_itself() -> None:
    mask = on(1, 0)
    assert check_mask(mask, torch.Size([2]), CPU) is mask


def test_a_smaller_mask_is_expanded_not_copied() -> None:
    mask = on(1, 0)
    wide = check_mask(mask, torch.Size([3, 2]), CPU)
    assert wide.shape == (3, 2)
    assert wide.data_ptr() == mask.data_ptr()


@pytest.mark.parametrize(
    ("mask", "kind", "words"),
    [
        ([True], TypeError, "Boolean torch.Tensor .*found list"),
        (torch.ones(2), TypeError, "torch.bool .*found torch.float32"),
        (on(1, 0, 1), ValueError, r"\(2,\), found shape \(3,\)"),
        (on(1, 0).to("meta"), ValueError, "device of the data, cpu, found meta"),
        (on(1, 0).to_sparse(), TypeError, "strided"),
    ],
)
def test_refusals_say_what_was_expected_and_found(mask: object, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        check_mask(mask, torch.Size([2]), CPU)


def test_the_pattern_knows_its_layout_and_shows_its_mask() -> None:
    assert BooleanPattern(on(1)).layout is torch.strided
    assert repr(BooleanPattern(on(1, 0))) == "BooleanPattern(tensor([ True, False]))"


def test_numbers_are_looked_at_only_where_it_is_harmless() -> None:
    assert can_read_values(torch.zeros(2))
    assert not can_read_values(torch.zeros(2, device="meta"))
    seen = []

    def note(row: torch.Tensor) -> torch.Tensor:
        seen.append(can_read_values(row))
        return row

    torch.vmap(note)(torch.zeros(2, 2))
    assert seen == [False]
