"""Extrema: of the specified entries, even where those are infinite; gradients shared among equals."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import inf, nan, on


@pytest.mark.parametrize("values", [[1.0, nan, 3.0], [nan, 2.0, nan], [nan] * 3, [inf, nan, -inf]])
@pytest.mark.parametrize("hidden", [nan, inf, -inf])
@pytest.mark.parametrize("largest", [False, True])
def test_equal_nan_share_the_gradient_of_everything(
    values: list[float], hidden: float, largest: bool
) -> None:
    plain = torch.tensor(values, requires_grad=True)
    (expected,) = torch.autograd.grad(plain.max() if largest else plain.min(), plain)
    leaf = torch.tensor([*values, hidden], requires_grad=True)
    x = mg.masked(leaf, on(1, 1, 1, 0))

    def extremum(leaf: torch.Tensor) -> torch.Tensor:
        x = mg.masked(leaf, on(1, 1, 1, 0))
        return (x.max() if largest else x.min()).filled(0)

    assert (x.max() if largest else x.min()).filled(0).isnan()
    assert torch.autograd.grad(extremum(leaf), leaf)[0].tolist() == [*expected.tolist(), 0.0]
    assert torch.func.grad(extremum)(leaf.detach()).tolist() == [*expected.tolist(), 0.0]
