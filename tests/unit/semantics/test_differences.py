"""Numerical derivatives at coordinates of which some are missing."""

from __future__ import annotations

import torch

import maskgrad as mg
from tests.poison import leaf, nan, on


def test_no_two_missing_coordinates_are_one() -> None:
    """They would be a distance of 0, by which neighbours that are known would divide."""
    at = leaf(0.0, 0.5, nan, nan, 1.5, 2.0, 2.5)
    values = torch.arange(7.0, dtype=torch.float64) ** 2
    coordinates = mg.masked(at, on(1, 1, 0, 0, 1, 1, 1))
    (found,) = torch.gradient(mg.masked(values), spacing=(coordinates,))
    assert found.mask.tolist() == [True, False, False, False, False, True, True]
    (grad,) = torch.autograd.grad(found.sum(), at)
    assert grad.isfinite().all()
    assert grad[[2, 3]].tolist() == [0.0, 0.0]
