"""Hooks and reversals that used to do nothing, or the wrong thing, in silence."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import gradient, leaf, nan

pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")


def test_two_ways_to_a_masked_mean_agree() -> None:
    x = leaf([1.0, 2.0, nan], [nan, 5.0, nan])
    known = ~x.detach().isnan()
    surgery = torch.where(known, mg.mask_gradient(x, known), 0.0).sum() / known.sum()
    for mean in (surgery, mg.masked(x, known).mean()):
        assert mean.item() == pytest.approx(8 / 3)
        torch.testing.assert_close(gradient(mean, x), known.double() / 3, rtol=1e-12, atol=0)


def test_there_is_nothing_to_scrub() -> None:
    x = leaf(0.0, 4.0)
    known = x.detach() > 0
    y = torch.where(known, mg.mask_gradient(x, known).log(), 0.0)
    assert gradient(y, x).tolist() == [0.0, 0.25]
    with torch.autograd.detect_anomaly():
        assert gradient(mg.masked(x, known).log(), x).tolist() == [0.0, 0.25]
