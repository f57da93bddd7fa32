"""Joins: pattern and values are put together alike; plain parts are fully specified."""

from __future__ import annotations

import torch

import maskgrad as mg
from tests.poison import assert_entries, assert_number, gradient, leaf, nan, poisoned


def test_losses_of_which_one_is_empty_are_combined_by_deletion() -> None:
    x, y = poisoned([1.0, 3.0], requires_grad=True), poisoned([None, None], requires_grad=True)
    full, empty = x.mean(), y.mean()
    both = mg.from_nan(torch.stack([full, empty]))
    assert_entries(both, [2.0, None])
    for total, number in ((both.sum(), 2.0), (both.mean(), 2.0), (full + empty, nan)):
        assert_number(total, number)
        assert gradient(total, x).tolist() == [0.5, 0.5]
        assert gradient(total, y).tolist() == [0.0, 0.0]


def test_a_learnt_factor_of_a_loss_that_may_be_empty() -> None:
    a, b = leaf(2.0), leaf(5.0)
    full, empty = poisoned([1.0, 3.0]).mean(), poisoned([None, None]).mean()
    total = torch.stack([mg.from_nan(full) * a[0], mg.from_nan(empty) * b[0], a.square().sum()]).sum()
    assert_number(total, 8.0)
    assert gradient(total, a).tolist() == [6.0]
    assert gradient(total, b).tolist() == [0.0]
