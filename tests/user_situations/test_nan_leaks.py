"""NaN and infinity that used to leak through entries nobody wanted."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import assert_entries, gradient, leaf, nan


def test_dividing_by_zero_in_an_entry_that_is_dropped() -> None:
    x, z = leaf(1.0, 1.0), torch.tensor([0.0, 1.0]).double()
    y = x / mg.masked(z, z != 0)
    assert_entries(y, [None, 1.0])
    assert gradient(y, x).tolist() == [0.0, 1.0]


def test_a_mask_that_only_the_result_reveals() -> None:
    def f(v: Any) -> Any:
        return (v - 1).sqrt()

    x = leaf(0.5, 5.0)
    ok = f(x.detach()).isfinite()
    y = torch.where(ok, f(mg.masked(x, ok)), x * 0)
    assert_entries(y, [0.0, 2.0])
    assert gradient(y, x).tolist() == [0.0, 0.25]


def test_masking_before_or_after_the_square_is_the_same() -> None:
    p, t = leaf(0.0, 0.0), mg.from_nan(torch.tensor([nan, 1.0]).double())
    before = (mg.masked(p, t.mask) - t).square().sum()
    for result in (before, (p - t).square().sum(), F.mse_loss(p, t, reduction="sum")):
        assert_entries(result, 1.0)
        assert gradient(result, p).tolist() == [0.0, -2.0]
