"""Medians, quantiles, k-th entries and modes: torch's on what is left, wherever it lies among equals."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, poisoned


@pytest.mark.own_dtype("bfloat16", "float16")
def test_ties_with_what_could_be_a_filler() -> None:
    limits = torch.iinfo(torch.int64)
    x = poisoned([None, limits.max, None, limits.min, None], torch.int64)
    assert_entries(x.median(0).indices, 3)
    assert_entries(x.kthvalue(2).indices, 1)
    y = poisoned([None, -inf, None, -inf, inf, None, nan])
    assert_entries(y.nanmedian(0).values, -inf)
    assert_entries(y.median(0).indices, 6)
    assert_entries(y.kthvalue(4).indices, 6)
    assert_entries(y.kthvalue(5).values, None)
    assert_entries(poisoned([None, nan, None]).nanmedian(0).indices, 1)
    assert_entries(poisoned([None, nan]).mode().indices, 1)
    assert_entries(poisoned([inf, nan, None, -inf, inf]).mode().indices, 4)
    assert_entries(poisoned([nan, None, 1.0]).mode().values, 1.0)
    assert_entries(poisoned([nan, None, 1.0]).quantile(0.5), nan)
    assert_entries(poisoned([nan, None, 1.0]).nanquantile(0.5), 1.0)


@pytest.mark.own_dtype("bfloat16", "float16")
def test_quantiles_refuse_what_torch_refuses() -> None:
    for x, q, more in (
        (poisoned([1.0], torch.float16), 0.5, {}),
        (poisoned([1.0]), 1.5, {}),
        (poisoned([1.0]), torch.tensor(0.5).half(), {}),
        (poisoned([1.0]), 0.5, {"interpolation": "cubic"}),
        (mg.masked(torch.zeros(0), torch.zeros(0, dtype=torch.bool)), 0.5, {}),
    ):
        with pytest.raises(RuntimeError, match="quantile"):
            torch.quantile(x, q, **more)
    with pytest.raises(IndexError):
        poisoned([1.0]).quantile(0.5, 1)
