"""What the mixin shows of a micro-batch, which needs no Lightning."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg
from tests.poison import nan, on


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("mean", "value"),
    [
        ("token-mean", 2.0),
        ("entry", 2.0),
        ("seq-mean-token-mean", 3.0),
        ("sequence", 3.0),
        ("seq-mean-token-sum", 4.0),
    ],
)
def test_the_loss_that_is_shown_has_the_mean_of_its_name_old_or_new(mean: str, value: float) -> None:
    losses = torch.tensor([[1.0, 1.0, 1.0], [5.0, nan, nan]], requires_grad=True)
    net = type("Net", (mg.integrations.LightningMixin,), {"mean": mean})()
    assert net.losses(mg.masked(losses, on([1, 1, 1], [1, 0, 0]))).item() == value
