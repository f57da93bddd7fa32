"""Opacus: gradients per sample, clipped one by one; masked losses on plain batches, not masked inputs."""

from __future__ import annotations

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn

import maskgrad as mg
from tests.ecosystem.truth import assert_refused, garbage


def test_masked_losses() -> None:
    _, values, _ = garbage(5, 3)
    mask = torch.rand(5, 2) < 0.5
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    truth = []
    for row, some in zip(values, mask, strict=True):  # over what is specified of one sample
        loss = model(row[None])[0][some].square().sum()
        truth.append(torch.autograd.grad(loss, [*model.parameters()]))
    private = GradSampleModule(model, loss_reduction="sum")
    mg.masked(private(values.requires_grad_()), mask).square().sum().backward()
    for param, expected in zip(model.parameters(), zip(*truth, strict=True), strict=True):
        torch.testing.assert_close(param.grad_sample, torch.stack(expected))


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
    assert_refused(r"mg\.per_sample_grad", lambda: GradSampleModule(layer)(x))
