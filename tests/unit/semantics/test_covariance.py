"""Covariance and correlation: each pair of variables over the observations that have both."""

from __future__ import annotations

import math

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, poisoned


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


def test_each_pair_of_variables_has_the_observations_that_both_have() -> None:
    x = poisoned([[1.0, 2.0, 3.0, None], [None, 4.0, 8.0, 1.0], [None, None, None, 5.0]])
    with pytest.warns(UserWarning, match="degrees of freedom"):
        torch.cov(torch.ones(1, 1))
    assert_entries(x.cov(), [[1.0, 2.0, None], [2.0, 37 / 3, None], [None] * 3])
    assert_entries(x.corrcoef(), [[1.0, 1.0, None], [1.0, 1.0, None], [None] * 3])


def test_a_variable_that_is_constant_in_common_has_no_correlation() -> None:
    x = poisoned([[0.1, 0.1, 0.1, 9.0], [1.0, 2.0, 4.0, None]], torch.float32)
    r = torch.corrcoef(x)
    assert r.mask.all()
    assert math.isnan(r[0, 1].item())
    assert r.filled(0).diagonal().tolist() == [1.0, 1.0]


def test_an_infinite_entry_stays_in_its_pairs() -> None:
    x = poisoned([[inf, 1.0, 2.0], [None, 3.0, 5.0]])
    c = torch.cov(x)
    assert c[0, 1].item() == 1.0
    assert not math.isfinite(c[0, 0].item())
