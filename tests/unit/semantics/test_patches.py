"""Patches: the mask moves along with unfold, overlapping entries are added by fold."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg
from tests.poison import assert_entries, gradient, nan, poisoned

IMAGE = [[[[1.0, None], [3.0, 4.0]]]]


def test_unfold_moves_the_mask_and_pads_with_specified_zeros() -> None:
    x = poisoned(IMAGE, requires_grad=True)
    columns = F.unfold(x, (1, 2), padding=(0, 1))
    assert_entries(columns, [[[0.0, 1.0, None, 0.0, 3.0, 4.0], [1.0, None, 0.0, 3.0, 4.0, 0.0]]])
    assert gradient(columns, x).tolist() == [[[[2.0, 0.0], [2.0, 2.0]]]]
    assert_entries(nn.Unfold(2)(x), [[[1.0], [None], [3.0], [4.0]]])
    assert_entries(nn.Unfold(2)(x[0]), [[1.0], [None], [3.0], [4.0]])


def test_fold_after_unfold_counts_the_patches() -> None:
    x = mg.masked(torch.tensor([[[[1.0, nan, 2.0]] * 3]]), torch.tensor([[[[1, 0, 1]] * 3]]).bool())
    back = F.fold(F.unfold(x, 3, padding=1), (3, 3), 3, padding=1)
    assert torch.equal(back.mask, x.mask)
    assert_entries(back[0, 0, 1], [6.0, None, 12.0])
