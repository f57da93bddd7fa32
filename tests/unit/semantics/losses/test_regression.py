"""Losses of two tensors, entry by entry, also of yes or no: over the positions where both are specified."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import assert_entries, assert_number, gradient, inf, leaf, nan, poisoned


def test_a_loss_of_nothing_leaves_another_loss_its_gradient() -> None:
    w = leaf(2.0, 3.0)
    auxiliary = F.mse_loss(w * poisoned([None, None]), torch.zeros(2).double())
    total = w.square().sum() + 0.1 * auxiliary
    assert_number(total, nan)
    assert gradient(total, w).tolist() == [4.0, 6.0]


def test_shapes_that_broadcast_are_warned_of_and_an_unknown_reduction_is_refused() -> None:
    with pytest.warns(UserWarning, match="target size .* different to the input size"):
        assert_entries(F.mse_loss(poisoned([[1.0], [None]]), torch.zeros(2).double()), 1.0)
    with pytest.raises(ValueError, match="average"):
        F.mse_loss(poisoned([1.0]), poisoned([1.0]), reduction="average")


def test_a_weighted_mean_divides_by_the_weights_that_are_left() -> None:
    x, t, w = poisoned([1.0, None, 5.0]), poisoned([0.0, 0.0, 1.0]), poisoned([3.0, None, 1.0])
    assert_entries(F.mse_loss(x, t, weight=w), (3 * 1 + 16) / 4)
    assert_entries(F.huber_loss(x, t, weight=w), (3 * 0.5 + 3.5) / 2)
    for weight in (w, torch.tensor([3.0, nan, 1.0]).double()):  # torch's own forgets it

        def loss(x: mg.MaskedTensor, t: mg.MaskedTensor) -> torch.Tensor:
            return F.l1_loss(x, t, weight=weight)  # noqa: B023

        for call in (loss, torch.compile(loss, fullgraph=True, backend="eager")):
            assert_entries(call(x, t), 7 / 4)
        with torch.device("cpu"):  # modes dispatch the call once more
            assert_entries(loss(x, t), 7 / 4)
    with pytest.raises(ValueError, match="same size"):
        F.mse_loss(x, t, weight=torch.ones(2))


def test_variances_broadcast_and_only_specified_ones_are_looked_at() -> None:
    x, t = poisoned([[1.0, 2.0], [None, 4.0]]), torch.zeros(2, 2).double()
    one = F.gaussian_nll_loss(
        torch.tensor([1.0, 2.0, 4.0]).double(),
        torch.zeros(3).double(),
        torch.tensor([2.0, 2.0, 3.0]).double(),
    )
    assert_entries(F.gaussian_nll_loss(x, t, torch.tensor([2.0, 3.0]).double()), one.item())
    assert_entries(F.gaussian_nll_loss(x, t, torch.tensor([[2.0], [3.0]]).double()), one.item())
    with pytest.raises(ValueError, match="negative"):
        F.gaussian_nll_loss(x, t, poisoned([[2.0, -1.0], [None, 1.0]]))
    assert F.gaussian_nll_loss(x, t, poisoned([[2.0, 1.0], [None, 1.0]])).isfinite()
    with pytest.raises(ValueError, match="incorrect size"):
        F.gaussian_nll_loss(x, t, torch.ones(3))


def test_an_infinite_weight_meets_nothing_where_the_logit_is_missing() -> None:
    x = poisoned([[1.0, None], [0.5, None]], requires_grad=True)
    weight = torch.tensor([1.0, inf]).double()
    loss = F.binary_cross_entropy_with_logits(x, torch.ones(2, 2).double(), pos_weight=weight)
    assert loss.isfinite().all()
    assert gradient(loss, x).isfinite().all()


def test_other_sizes_are_refused() -> None:
    p, target = poisoned([[0.2, None], [0.9, 0.5]]), torch.ones(2).double()
    with pytest.raises(ValueError, match="different to the input size"):
        F.binary_cross_entropy(p, target)
    with pytest.raises(ValueError, match="must be the same as input size"):
        F.binary_cross_entropy_with_logits(p, target)


def test_what_is_no_probability_is_refused() -> None:
    data, mask = torch.rand(50_001), torch.ones(50_001).bool()  # enough for the compiled bodies
    data[7] = 1.5
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        F.binary_cross_entropy(mg.masked(data, mask), torch.rand(50_001))
    mask[7] = False
    assert F.binary_cross_entropy(mg.masked(data, mask), torch.rand(50_001)).isfinite()
