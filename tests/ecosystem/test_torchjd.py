"""torchjd: Jacobians of several objectives; masked inputs inside, plain objectives outside."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchjd.aggregation import UPGrad
from torchjd.autojac import backward, jac_to_grad

import maskgrad as mg
from tests.ecosystem.truth import assert_refused, garbage


def gradients(model: nn.Module, objectives: list[Tensor] | Tensor) -> list[Tensor]:
    model.zero_grad()
    backward(objectives)
    jac_to_grad(model.parameters(), UPGrad())
    return [p.grad.clone() for p in model.parameters()]


def test_masked_objectives_refuse() -> None:
    x, values, mask = garbage(5, 3)
    model, known, labels = nn.Linear(3, 2), torch.arange(5) != 1, torch.randn(5)
    out, plain = model(x), model(values[mask.any(1)])  # contractions sum over what is specified
    means = gradients(model, [out[:, 0].mean(), out[:, 1].square().mean()])
    torch.testing.assert_close(means, gradients(model, [plain[:, 0].mean(), plain[:, 1].square().mean()]))
    losses = (model(values)[:, 0] - mg.masked(labels, known)).square()
    truth = (model(values[known])[:, 0] - labels[known]).square()
    torch.testing.assert_close(gradients(model, losses.compressed()), gradients(model, truth))
    assert_refused(r"losses\.compressed\(\)", lambda: backward(losses), lambda: backward([losses]))
