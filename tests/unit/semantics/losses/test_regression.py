"""Losses of two tensors, entry by entry: over the positions where both are specified."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import assert_entries, assert_nothing, assert_number, gradient, leaf, nan, on, poisoned

INPUT, TARGET = [1.0, 2.0, None, 4.0], [0.0, None, 7.0, 1.0]


@pytest.mark.parametrize(("reduction", "number"), [("mean", nan), ("sum", 0.0)])
@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"])
def test_nothing_in_common_is_the_number_of_an_empty_tensor(name: str, reduction: str, number: float) -> None:
    x, t = poisoned([1.0, None], requires_grad=True), poisoned([None, 1.0], requires_grad=True)
    reduction = "batchmean" if (name, reduction) == ("kl_div", "mean") else reduction
    loss = getattr(F, name)(x, t, reduction=reduction)
    assert_nothing(loss, number, x, t)
    loss.backward()
    assert x._values.grad.tolist() == [0.0, 0.0]


def test_a_loss_of_nothing_leaves_another_loss_its_gradient() -> None:
    w = leaf(2.0, 3.0)
    auxiliary = F.mse_loss(w * poisoned([None, None]), torch.zeros(2).double())
    total = w.square().sum() + 0.1 * auxiliary
    assert_number(total, nan)
    assert gradient(total, w).tolist() == [4.0, 6.0]


def test_shapes_that_broadcast_are_warned_of_as_in_torch() -> None:
    with pytest.warns(UserWarning, match="target size .* different to the input size"):
        assert_entries(F.mse_loss(poisoned([[1.0], [None]]), torch.zeros(2).double()), 1.0)


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="average"):
        F.mse_loss(poisoned(INPUT), poisoned(TARGET), reduction="average")


def test_a_weighted_mean_divides_by_the_weights_that_are_left() -> None:
    x, t, w = poisoned([1.0, None, 5.0]), poisoned([0.0, 0.0, 1.0]), poisoned([3.0, 7.0, 1.0])
    assert_entries(F.mse_loss(x, t, weight=w), (3 * 1 + 16) / 4)
    assert_entries(F.huber_loss(x, t, weight=w), (3 * 0.5 + 3.5) / 2)
    with pytest.raises(ValueError, match="same size"):
        F.mse_loss(x, t, weight=torch.ones(2))


def test_compiled_once_for_all_masks() -> None:
    loss = torch.compile(lambda x, m, t: F.mse_loss(mg.masked(x, m), t), fullgraph=True, backend="aot_eager")
    x, t = leaf(1.0, 2.0, nan), torch.zeros(3).double()
    expected = {(1, 1, 0): (2.5, [1.0, 2.0, 0.0]), (0, 1, 0): (4.0, [0.0, 4.0, 0.0])}
    for bits, (number, slope) in expected.items():
        assert_number(loss(x, on(*bits), t), number)
        assert gradient(loss(x, on(*bits), t), x).tolist() == slope
    with mg.assert_no_recompile():
        assert_nothing(loss(x, on(0, 0, 0), t), nan, x)


def test_the_weight_that_torch_forgets() -> None:
    x, t = torch.tensor([1.0, nan, 5.0]), torch.tensor([0.0, 0.0, 1.0])
    for w in (torch.tensor([3.0, nan, 1.0]), mg.masked(torch.tensor([3.0, nan, 1.0]), on(1, 0, 1))):

        def loss(x: torch.Tensor) -> torch.Tensor:
            return F.l1_loss(mg.masked(x, on(1, 0, 1)), t, weight=w)  # noqa: B023

        assert loss(x).item() == 7 / 4
        assert torch.compile(loss, fullgraph=True, backend="aot_eager")(x).item() == 7 / 4
    assert_entries(F.l1_loss(mg.masked(x, on(1, 0, 1)), t), 2.5)


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


def test_halves_do_not_overflow_on_the_way() -> None:
    x = poisoned([200.0] * 4 + [None], torch.float16)
    assert_entries(F.mse_loss(x, torch.zeros(5, dtype=torch.float16)), 40000.0, dtype=torch.float16)
