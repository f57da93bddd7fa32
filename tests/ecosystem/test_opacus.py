"""Opacus: gradients per sample, clipped one by one; masked losses on plain batches, not masked inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn

import maskgrad as mg
from maskgrad.errors import MaskgradError
from tests.ecosystem.rows import one_line, refused, works
from tests.ecosystem.truth import garbage


def per_sample(model: nn.Module, values: Any, mask: torch.Tensor) -> list[torch.Tensor]:
    """One backward pass for each sample, over what is specified of it."""
    found = []
    for row, some in zip(values, mask, strict=True):
        model.zero_grad()
        model(row[None])[0][some].square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    return [torch.stack(list(column)) for column in zip(*found, strict=True)]


@works("opacus", "`GradSampleModule` with masked losses of a plain batch")
def test_masked_losses() -> None:
    _, values, _ = garbage(5, 3)
    mask = torch.rand(5, 2) < 0.5
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    truth = per_sample(model, values, mask)
    model.zero_grad()
    private = GradSampleModule(model, loss_reduction="sum")
    mg.masked(private(values.requires_grad_()), mask).square().sum().backward()
    for param, expected in zip(model.parameters(), truth, strict=True):
        torch.testing.assert_close(param.grad_sample, expected)


@refused(
    "opacus",
    "masked inputs of `GradSampleModule`",
    "`mg.per_sample_grad`, or `x.filled(0.)` and a masked loss",
)
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(3, 2), (4, 3)),
        (nn.Conv1d(3, 2, 2), (4, 3, 5)),
        (nn.LayerNorm(3), (4, 3)),
        (nn.GroupNorm(1, 3), (4, 3)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_masked_inputs_refuse(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x, _, _ = garbage(*shape)
    private = GradSampleModule(layer)
    with pytest.raises(MaskgradError, match=r"mg\.per_sample_grad"):
        private(x)


@one_line(
    "opacus", "per-sample gradients of masked inputs", "`mg.per_sample_grad(model, loss_fn, x, targets)`"
)
def test_our_own_gradients_per_sample() -> None:
    x, values, mask = garbage(5, 3)
    layer, targets = nn.Linear(3, 1), torch.randn(5, 1)
    found = mg.per_sample_grad(layer, nn.functional.mse_loss, x, targets)
    for sample in range(5):
        layer.zero_grad()
        if mask[sample].any():
            nn.functional.mse_loss(layer(values[sample]), targets[sample]).backward()
            torch.testing.assert_close(found["weight"][sample], layer.weight.grad)
