"""Means and norms over specified entries: a mask and a list of pieces say the same, and both what NumPy says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from maskgrad.kernels.updates.specified import EVERY, Listed, Specified

NAN = float("nan")


def masks() -> tuple[Tensor, Tensor]:
    """Values (4, 5), NaN where unspecified, and the mask; row 2 has no entry."""
    mask = torch.rand(4, 5) < 0.5
    mask[2], mask[0, 0], mask[1], mask[3, 4] = False, True, True, True
    return torch.where(mask, torch.rand(4, 5) + 1, NAN), mask


def test_the_mean_and_the_largest_of_a_row_are_over_its_specified_entries() -> None:
    x, mask = masks()
    like = torch.zeros(4, 1)
    some = [0, 1, 3]
    mean, largest = Specified(mask).row_mean(x, like), Specified(mask).row_amax(x, like)
    np.testing.assert_allclose(mean[some, 0], np.nanmean(x[some].numpy(), 1), rtol=1e-6)
    np.testing.assert_allclose(largest[some, 0], np.nanmax(x[some].numpy(), 1))
    assert (mean[2].item(), largest[2].item()) == (0, 0)

    at = mask.nonzero()
    listed = Listed(at[:, 0])
    entries, gathered = x[mask], torch.zeros(len(at))
    torch.testing.assert_close(listed.row_mean(entries, gathered), mean[at[:, 0], 0])
    assert torch.equal(listed.row_amax(entries, gathered), largest[at[:, 0], 0])


def test_pieces_may_be_longer_than_one_entry() -> None:
    x = torch.rand(4, 3, 2)
    rows = torch.tensor([0, 5, 5, 5])
    expected = torch.stack([x[0].mean(0), *[x[1:].mean((0, 1))] * 3])[:, None]
    torch.testing.assert_close(Listed(rows).row_mean(x, torch.zeros(4, 1, 2)), expected)
    expected = torch.stack([x[0].amax(0), *[x[1:].amax((0, 1))] * 3])[:, None]
    assert torch.equal(Listed(rows).row_amax(x, torch.zeros(4, 1, 2)), expected)


def test_where_everything_is_specified_kernels_are_those_of_torch() -> None:
    x = torch.rand(4, 3)
    torch.testing.assert_close(EVERY.row_mean(x, torch.zeros(4, 1)), x.mean(1, keepdim=True))
    assert torch.equal(EVERY.row_amax(x, torch.zeros(4, 1)), x.amax(1, keepdim=True))
    assert EVERY.row_mean(x, x) is x


NO_WIDTH = [EVERY, Specified(torch.ones(2, 0, dtype=torch.bool)), Listed(torch.tensor([0, 1]))]


@pytest.mark.parametrize("specified", NO_WIDTH)
def test_rows_of_no_width_have_mean_0(specified: Specified) -> None:
    x, like = torch.zeros(2, 0), torch.zeros(2, 1)
    assert specified.row_mean(x, like).tolist() == [[0.0], [0.0]]
    assert specified.row_amax(x, like).tolist() == [[0.0], [0.0]]
