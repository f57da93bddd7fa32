"""Losses: over the positions where both sides are specified; the mean divides by their number."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.poison import assert_entries, gradient, leaf, nan, poisoned

INPUT, TARGET = [1.0, 2.0, None, 4.0], [0.0, None, 7.0, 1.0]


def test_reductions() -> None:
    x, t = poisoned(INPUT), poisoned(TARGET)
    assert_entries(F.mse_loss(x, t, reduction="none"), [1.0, None, None, 9.0])
    assert_entries(F.mse_loss(x, t), 5.0)
    assert_entries(F.mse_loss(x, t, reduction="sum"), 10.0)
    assert_entries(nn.MSELoss()(x, torch.zeros(4).double()), 7.0)
    with pytest.warns(UserWarning, match="size_average"):
        assert_entries(F.mse_loss(x, t, size_average=False), 10.0)


def test_gradients_reach_common_positions_only() -> None:
    x, t = poisoned(INPUT, requires_grad=True), poisoned(TARGET, requires_grad=True)
    assert gradient(F.mse_loss(x, t), x).tolist() == [1.0, 0.0, 0.0, 3.0]
    assert gradient(F.mse_loss(x, t), t).tolist() == [-1.0, 0.0, 0.0, -3.0]


def test_a_plain_prediction_keeps_no_trace_of_a_missing_target() -> None:
    prediction = leaf(1.0, 1e300, nan, 4.0)
    loss = F.mse_loss(prediction, poisoned([0.0, None, None, 1.0]))
    assert_entries(loss, 5.0)
    assert gradient(loss, prediction).tolist() == [1.0, 0.0, 0.0, 3.0]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_nothing_in_common_is_unspecified(reduction: str) -> None:
    x = poisoned([1.0, None], requires_grad=True)
    loss = F.mse_loss(x, poisoned([None, 1.0]), reduction=reduction)
    assert_entries(loss, None)
    loss.backward()
    assert x._values.grad.tolist() == [0.0, 0.0]


def test_weights() -> None:
    x, t, w = poisoned(INPUT), poisoned(TARGET), torch.tensor([1.0, nan, nan, 3.0]).double()
    assert_entries(F.mse_loss(x, t, reduction="none", weight=w), [1.0, None, None, 27.0])
    assert_entries(F.mse_loss(x, t, reduction="sum", weight=w), 28.0)
    kept = [torch.tensor(v).double() for v in ([1.0, 4.0], [0.0, 1.0], [1.0, 3.0])]
    assert_entries(F.mse_loss(x, t, weight=w), F.mse_loss(kept[0], kept[1], weight=kept[2]).item())
    assert_entries(F.mse_loss(x, t, weight=poisoned([1.0, 1.0, 1.0, None])), 1.0)


def test_halves_do_not_overflow_on_the_way() -> None:
    x = poisoned([200.0] * 4 + [None], torch.float16)
    assert_entries(F.mse_loss(x, torch.zeros(5, dtype=torch.float16)), 40000.0, dtype=torch.float16)


def test_shapes_that_broadcast_are_warned_of_as_in_torch() -> None:
    with pytest.warns(UserWarning, match="target size .* different to the input size"):
        assert_entries(F.mse_loss(poisoned([[1.0], [None]]), torch.zeros(2).double()), 1.0)


def test_an_unknown_reduction() -> None:
    with pytest.raises(ValueError, match="average"):
        F.mse_loss(poisoned(INPUT), poisoned(TARGET), reduction="average")
