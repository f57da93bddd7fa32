"""The sum of a batch without labels, on a rank whose gradients others wait for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.integrations.transformers.trainer import _nothing
from tests.poison import nan


@pytest.mark.parametrize("kind", [dict, tuple])
def test_nothing_reaches_every_output_with_a_zero_gradient(kind: Any) -> None:
    weights = torch.ones(2, 3, requires_grad=True)
    mask = torch.rand(2, 3) < 0.5
    loss, logits = weights.sum() * nan, weights * mg.masked(torch.where(mask, 1.0, nan), mask)
    outputs = {"loss": loss, "logits": logits} if kind is dict else (loss, logits)
    found = _nothing(loss, outputs, 2)
    assert found == 0
    assert torch.autograd.grad(found, weights)[0].count_nonzero() == 0
    assert _nothing(loss, outputs, 1).requires_grad
