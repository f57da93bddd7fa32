"""Covariance and correlation: each pair of variables over the observations that have both."""

from __future__ import annotations

import torch

import maskgrad as mg
from tests.poison import inf, nan


def test_an_observation_that_is_repeated_has_an_estimate() -> None:
    """As in torch: three equal observations have the variance 0, one has none, with either weight."""
    one = mg.masked(torch.tensor([[5.0, nan]]), torch.tensor([[True, False]]))
    assert torch.cov(one, fweights=torch.tensor([3, 1])).filled(9).item() == 0
    assert not torch.cov(one, fweights=torch.tensor([1, 3])).mask
    assert not torch.cov(one, aweights=torch.tensor([0.3, 3.0])).mask
    both = {"fweights": torch.tensor([2, 5]), "aweights": torch.tensor([0.1, 3.0])}
    assert torch.cov(one, **both).filled(9).item() == 0
    assert not torch.cov(one, **both, correction=2).mask


def test_nothing_has_no_covariance_whatever_the_correction() -> None:
    nothing = mg.masked(torch.tensor([[nan, 1.0], [2.0, inf]]), torch.tensor([[False, True], [True, False]]))
    for correction in (-1, 0, 1):
        found = torch.cov(nothing, correction=correction)
        assert found.mask.tolist() == [[correction < 1, False], [False, correction < 1]]
