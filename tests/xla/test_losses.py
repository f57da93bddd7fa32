"""Losses over what is specified: one graph, whatever is missing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from tests.xla.steps import assert_one_graph, run

NAN = float("nan")
# PyTorch/XLA runs huber_loss on the host, masked or not.
CONTINUOUS = [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits]


def masks() -> list[Tensor]:
    torch.manual_seed(2)
    return [torch.rand(6, 3) < k / 7 for k in range(8)]  # nothing specified in the first


@pytest.mark.parametrize("loss", CONTINUOUS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_missing_targets(loss: Any, reduction: str, device: torch.device) -> None:
    present = masks()
    x = [torch.randn(6, 3) for _ in present]
    targets = [torch.where(m, torch.rand(6, 3), NAN) for m in present]

    def step(x: Tensor, target: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        result = loss(x, mg.masked(target, mask), reduction=reduction)
        result.backward()
        return result, x.grad

    found, cost = run(lambda k: step(x[k].to(device), targets[k].to(device), present[k].to(device)))
    assert_one_graph(cost)
    for k, (value, gradient) in enumerate(found):
        expected, slope = step(x[k], targets[k], present[k])
        torch.testing.assert_close(value, expected, equal_nan=True)
        torch.testing.assert_close(gradient, slope)
        assert not gradient[~present[k]].any()


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"weight": [1.0, 2.0, 0.5]}])
def test_missing_labels_and_forbidden_classes(options: dict[str, Any], device: torch.device) -> None:
    present = masks()
    logits = [torch.where(m, torch.randn(6, 3), NAN) for m in present]
    labelled = [torch.arange(6) < k for k in range(8)]
    labels = [m.to(torch.int64).argmax(1) for m in present]

    def step(x: Tensor, mask: Tensor, label: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone().requires_grad_()
        extra = {
            name: torch.tensor(v, device=x.device) if name == "weight" else v for name, v in options.items()
        }
        # a label must be a class that is there
        loss = F.cross_entropy(mg.masked(x, mask), mg.masked(label, known & mask.any(1)), **extra)
        loss.backward()
        return loss, x.grad

    parts = list(zip(logits, present, labels, labelled, strict=True))
    found, cost = run(lambda k: step(*(t.to(device) for t in parts[k])))
    assert_one_graph(cost)
    for k, (value, gradient) in enumerate(found):
        expected, slope = step(*parts[k])
        torch.testing.assert_close(value, expected, equal_nan=True)
        torch.testing.assert_close(gradient, slope)
