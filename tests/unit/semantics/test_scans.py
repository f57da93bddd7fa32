"""Scans, differences and integrals: over the specified entries up to a position; gaps stay gaps."""

from __future__ import annotations

import pytest
import torch

from tests.poison import assert_entries, gradient, inf, leaf, on, poisoned


@pytest.mark.own_dtype
def test_running_products_that_overflow() -> None:
    # a 1 in the gap would meet inf * 0 in the backward pass
    x = poisoned([1e200, 1e200, None, 2.0], requires_grad=True)
    clean = leaf(1e200, 1e200, 2.0)
    (right,) = torch.autograd.grad(clean.cumprod(0).sum(), clean)
    assert gradient(x.cumprod(0), x)[on(1, 1, 0, 1)].tolist() == right.tolist()


def test_logarithms_of_sums_between_infinities() -> None:
    x = poisoned([None, 0.0, None, inf, 1.0], requires_grad=True)
    assert_entries(x.logcumsumexp(0), [None, 0.0, None, inf, inf])
    # torch has NaN for the infinite one
    assert gradient(x.logcumsumexp(0), x).tolist() == [0.0, 1.0, 0.0, 2.0, 0.0]
    far = poisoned([-1000.0, None, 900.0], requires_grad=True)
    assert gradient(far.logcumsumexp(0)[2], far).tolist() == [0.0, 0.0, 1.0]


def test_integrals_refuse_what_torch_refuses() -> None:
    y = poisoned([1.0, None, 3.0])
    for call in (
        lambda: torch.trapezoid(y, torch.ones(2)),
        lambda: torch.trapezoid(poisoned([True, None], torch.bool)),
        lambda: torch.trapezoid(y, on(1, 0, 1)),
        lambda: torch.trapezoid(y, torch.ones(2, 3), dim=0),
    ):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(IndexError):
        torch.trapezoid(poisoned(1.0))
    with pytest.raises(IndexError):
        torch.cumulative_trapezoid(y, dim=2)
