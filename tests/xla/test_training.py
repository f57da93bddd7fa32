"""Training: what a step of the optimizers costs, with dense and masked gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.unit.optim.optimizers import NAMES
from tests.xla.steps import STEPS, assert_one_graph, run

NAN = float("nan")
WARM = 6  # steps in which states are created, and after which RAdam changes its rule

Step = Callable[[int], Any]


# PyTorch keeps two learning rates of ASGD on the device, and so do we: they are read in every step.
NEVER_READ = [name for name in NAMES if name != "ASGD"]


def compare(
    build: Callable[[torch.device], tuple[Step, Callable[[], list[Tensor]]]], device: torch.device
) -> None:
    """Train on the CPU and on ``device``: the same parameters, one graph after the first steps, nothing copied."""
    step, parameters = build(torch.device("cpu"))
    for k in range(WARM + STEPS):
        step(k)
    expected = [p.detach().clone() for p in parameters()]
    step, parameters = build(device)
    run(lambda k: (step(k), parameters()), WARM)
    found, cost = run(lambda k: (step(k), parameters()), STEPS, first=WARM)
    assert_one_graph(cost, compilations=0)
    for ours, theirs in zip(found[-1][1], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=1e-5)


def optimizer_of(name: str, params: Any, **options: Any) -> mg.optim.MaskedOptimizer:
    return getattr(mg.optim, name)(params, lr=1.0 if name == "Adadelta" else 0.05, **options)


@pytest.mark.parametrize("name", NEVER_READ)
def test_layers_with_missing_targets(name: str, device: torch.device) -> None:
    def build(on: torch.device) -> tuple[Step, Callable[[], list[Tensor]]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).to(on)
        optimizer = optimizer_of(name, model.parameters())

        def step(k: int) -> Any:
            torch.manual_seed(k)
            x, mask = torch.randn(8, 5).to(on), (torch.rand(8, 2) < (k + 1) / 9).to(on)
            target = torch.where(mask, torch.randn(8, 2).to(on), NAN)
            optimizer.zero_grad()
            F.mse_loss(model(x), mg.masked(target, mask)).backward()
            optimizer.step()

        return step, lambda: list(model.parameters())

    compare(build, device)


@pytest.mark.parametrize("name", ["Adagrad", "Adam"])
@pytest.mark.parametrize("options", [{}, {"state": "row"}, {"unspecified": "zero"}], ids=str)
def test_masked_gradients(name: str, options: dict[str, Any], device: torch.device) -> None:
    def build(on: torch.device) -> tuple[Step, Callable[[], list[Tensor]]]:
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(6, 3).to(on))
        optimizer = optimizer_of(name, [weight], **options)

        def step(k: int) -> Any:
            torch.manual_seed(k)
            mask = torch.rand(6, 3) < (k + 1) / 12
            gradient = torch.where(mask, torch.randn(6, 3), NAN)
            mg.attach_gradient(weight, mg.masked(gradient.to(on), mask.to(on)))
            optimizer.step()

        return step, lambda: [weight]

    compare(build, device)
