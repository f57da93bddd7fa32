"""Convolutions: infinities, patches and exports that no law draws; a refused layout of time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import assert_entries, inf, leaf, nan, on, poisoned


def test_infinite_weights_without_partners() -> None:
    w = leaf([[inf, 1.0]])
    assert_entries(F.conv1d(poisoned([[[None, 2.0, None]]]), w), [[[2.0, inf]]])


def test_windows_beside_and_between_the_data_are_the_bias() -> None:
    x, w, b = poisoned([[[None]]]), leaf([[1.0, 1.0]]), leaf(3.0)
    assert_entries(F.conv1d(x, w, b, padding=2), [[[3.0, None, None, 3.0]]])
    assert_entries(F.conv1d(x, w, b, padding=1, dilation=2), [[[3.0]]])


def test_fold_after_unfold_counts_the_patches() -> None:
    x = mg.masked(torch.tensor([[[[1.0, nan, 2.0]] * 3]]), torch.tensor([[[[1, 0, 1]] * 3]]).bool())
    back = F.fold(F.unfold(x, 3, padding=1), (3, 3), 3, padding=1)
    assert torch.equal(back.mask, x.mask)
    assert_entries(back[0, 0, 1], [6.0, None, 12.0])


@pytest.mark.own_dtype("bfloat16", "float16")
def test_time_first_is_refused_with_the_line_to_write() -> None:
    plain, w, b = torch.randn(4, 1, 2), torch.randn(3, 2, 2), torch.zeros(2)
    with pytest.raises(mg.UndefinedOnMaskedError, match=r"F.conv1d\(x.permute"):
        torch.conv_tbc(mg.masked(plain, on(1, 0, 1, 1)[:, None, None]), w, b, 1)
    torch.testing.assert_close(
        torch.conv_tbc(plain, w, b, 1),
        F.conv1d(plain.permute(1, 2, 0), w.permute(2, 1, 0), b, padding=1).permute(2, 0, 1),
    )
