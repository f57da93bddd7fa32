"""Random operations: leaves stay what they are, nothing is drawn from under the mask."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import nan


def test_rewriting_a_leaf_is_refused_as_in_torch() -> None:
    x = mg.masked(torch.ones(3, requires_grad=True), torch.tensor([True, True, False]))
    with pytest.raises(RuntimeError, match="leaf"):
        x.normal_()
    leaf = torch.ones(3, requires_grad=True)
    y = mg.masked(leaf, torch.tensor([True, True, False])) * 2
    y.uniform_()
    assert not torch.autograd.grad(y.sum(), leaf)[0].any()
    with torch.no_grad():
        x.normal_()
    assert x.mask.tolist() == [True, True, False]


@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_draws_specified_positions_only(replacement: bool) -> None:
    mask = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]]).bool()
    x = torch.where(mask, torch.rand(3, 4) + 0.1, nan)
    result = torch.multinomial(mg.masked(x, mask), 3, replacement)
    assert result.dtype == torch.int64
    # without replacement one entry allows one draw
    allowed = [[True] * 3, [False] * 3, [True, replacement, replacement]]
    assert result.mask.tolist() == allowed
    for row in range(3):
        assert mask[row][result.get_data()[row][result.mask[row]]].all()
    if not replacement:
        assert sorted(result[0].tolist()) == [0, 2, 3]


def test_draws_that_torch_refuses_are_refused() -> None:
    with pytest.raises(RuntimeError, match="sum of probabilities"):
        torch.multinomial(mg.masked(torch.zeros(2), torch.tensor([True, False])), 1)
    with pytest.raises(RuntimeError, match="cannot sample"):
        torch.multinomial(mg.masked(torch.rand(4)), 9)
    assert mg.masked(torch.rand(4)).multinomial(num_samples=9, replacement=True).shape == (9,)
