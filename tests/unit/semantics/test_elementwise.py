"""Elementwise: specified where all operands are; what is under the mask reaches nothing, to second order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import gradient, inf, leaf, nan, on, poisoned

FACTORS = [2, 2.5, 0, -1.0, inf, nan, torch.tensor(3.0), torch.tensor(inf), leaf(nan, inf, 2.0, 0.0)]


@pytest.mark.parametrize("number", range(len(FACTORS)))
@pytest.mark.parametrize("function", [torch.mul, torch.div], ids=["mul", "div"])
def test_a_factor_is_filled_only_if_its_partner_asks_for_a_gradient(function: Any, number: int) -> None:
    factor = FACTORS[number].detach() if isinstance(FACTORS[number], torch.Tensor) else FACTORS[number]
    x = poisoned([2.0, None, 3.0, None], torch.float32, requires_grad=True)
    alone = leaf(2.0, 1.0, 3.0, 1.0, dtype=torch.float32)
    for ours, theirs in ((function(x, factor), function(alone, factor)), (factor / x, factor / alone)):
        expected = torch.where(x.mask, gradient(theirs, alone), 0)
        torch.testing.assert_close(gradient(ours, x), expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(3, 4, 2), (3, 4, 1)], ids=["holes", "padding"])
def test_in_a_graph_gradients_are_selected_after_the_function(shape: tuple[int, ...]) -> None:
    def chain(x: torch.Tensor, weight: torch.Tensor, row: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        known = mg.masked(x, mask)
        return ((known.log() * weight / known.exp() + known.sqrt() * row).atan() ** 2).filled(0.0).sum()

    compiled = torch.compile(chain, fullgraph=True, backend="eager")
    mask = torch.rand(shape) < 0.5
    whole = mask.expand(3, 4, 2)
    x, weight, row = (torch.rand(size, dtype=torch.float64) + 0.5 for size in ((3, 4, 2), (3, 4, 2), (2,)))
    leaves = [part.requires_grad_() for part in (x.clone(), weight.clone(), row)]
    right = torch.autograd.grad(chain(*leaves, mask), leaves)
    for garbage in (nan, inf, -inf, 1e38, 0.0):
        spoilt = [torch.where(whole, part, garbage).requires_grad_() for part in (x, weight)]
        result = compiled(*spoilt, row, mask)
        torch.testing.assert_close(result, chain(*leaves, mask))
        found = torch.autograd.grad(result, [*spoilt, row], create_graph=True)
        torch.testing.assert_close(found, right)
        again = torch.autograd.grad([part.square().sum() for part in found], [*spoilt, row])
        assert all(part.isfinite().all() for part in again)
        assert not any(part[~whole].any() for part in (*found[:2], *again[:2]))


def test_an_infinite_entry_without_its_gate_spoils_nothing() -> None:
    x = leaf(inf, 2.0, 0.0, 0.0)
    assert gradient(F.glu(mg.masked(x, on(1, 1, 0, 1))), x).tolist() == [0.0, 0.5, 0.0, 0.5]
