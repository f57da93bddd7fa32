"""Histograms: torch's on what is left; unspecified entries are neither counted nor part of the range."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, poisoned


@pytest.mark.own_dtype("bfloat16", "float16")
def test_specified_nan_is_treated_as_in_torch() -> None:
    x = poisoned([1.0, None, nan, 2.0])
    assert_entries(x.histc(2, min=0, max=4), [1.0, 1.0])
    with pytest.raises(RuntimeError, match="not finite"):
        x.histc(2)
    with pytest.raises(RuntimeError, match="not finite"):
        poisoned([1.0, None, inf]).histogram(2)


def test_masked_edges_and_weights_that_do_not_fit_are_refused() -> None:
    x = poisoned([1.0, None, 2.0])
    for call in (
        lambda: x.histogram(poisoned([0.0, None, 3.0])),
        lambda: torch.histogramdd(x[:, None], [poisoned([0.0, None, 3.0])]),
    ):
        with pytest.raises(mg.UndefinedOnMaskedError, match="edge"):
            call()
    for call in (
        lambda: x.histogram(2, weight=torch.ones(2)),
        lambda: x.histogram(2, weight=torch.ones(3, dtype=torch.int64)),
        lambda: torch.histogramdd(x, 2),
        lambda: poisoned([1, None], torch.int64).histogram(2),
        lambda: poisoned([1, None], torch.int64).histc(2),
        lambda: poisoned([[1, None]], torch.int64).bincount(),
        lambda: poisoned([1, None], torch.int64).bincount(torch.ones(3)),
        lambda: poisoned([-1, None], torch.int64).bincount(),
        lambda: x.histc(0),
    ):
        with pytest.raises((RuntimeError, NotImplementedError)):
            call()
