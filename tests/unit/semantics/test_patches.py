"""Patches: the mask moves along with unfold, overlapping entries are added by fold."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import assert_entries, nan


def test_fold_after_unfold_counts_the_patches() -> None:
    x = mg.masked(torch.tensor([[[[1.0, nan, 2.0]] * 3]]), torch.tensor([[[[1, 0, 1]] * 3]]).bool())
    back = F.fold(F.unfold(x, 3, padding=1), (3, 3), 3, padding=1)
    assert torch.equal(back.mask, x.mask)
    assert_entries(back[0, 0, 1], [6.0, None, 12.0])
