"""Training: what a step of the optimizers costs, with dense and masked gradients, and of tables."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from tests.unit.optim.optimizers import NAMES
from tests.xla.steps import STEPS, run

WARM = 6  # steps in which states are created, and after which RAdam changes its rule
Backward = Callable[[], None]


def layers(on: torch.device) -> tuple[nn.Module, Backward]:
    """With missing targets."""
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).to(on)

    def backward() -> None:
        x, mask = torch.randn(8, 5).to(on), (torch.rand(8, 2) < 0.6).to(on)
        target = torch.where(mask, torch.randn(8, 2).to(on), torch.nan)
        F.mse_loss(model(x), mg.masked(target, mask)).backward()

    return model, backward


def masked_gradients(on: torch.device) -> tuple[nn.Module, Backward]:
    model = nn.Linear(6, 3, bias=False).to(on)

    def backward() -> None:
        mask = torch.rand(3, 6) < 0.6
        gradient = torch.where(mask, torch.randn(3, 6), torch.nan)
        mg.attach_gradient(model.weight, mg.masked(gradient.to(on), mask.to(on)))

    return model, backward


def table(on: torch.device, kind: Any = mg.nn.Embedding, **options: Any) -> tuple[nn.Module, Backward]:
    """On a device without sparse tensors: dense gradients; bags are summed, passes accumulate."""
    model = kind(7, 3, sparse=False, **options).to(on)

    def backward() -> None:
        for _ in range(2):
            rows, bags = torch.randint(7, (8,)).to(on), torch.tensor([0, 2, 2, 5]).to(on)
            (model(rows, bags) if options else model(rows)).square().sum().backward()

    return model, backward


sums = functools.partial(table, kind=mg.nn.EmbeddingBag, mode="sum")
means = functools.partial(table, kind=mg.nn.EmbeddingBag, mode="mean", padding_idx=1)


@pytest.mark.parametrize(
    ("build", "name", "options"),
    [
        # PyTorch keeps two learning rates of ASGD on the device, and so do we: they are read in every step.
        *((layers, name, {}) for name in NAMES if name != "ASGD"),
        *(
            (masked_gradients, "Adagrad", options)
            for options in ({}, {"state": "row"}, {"unspecified": "zero"})
        ),
        *((build, "Adagrad", {}) for build in (table, sums, means)),
    ],
    ids=str,
)
def test_as_on_the_cpu_in_one_graph_after_the_first_steps(
    build: Callable[..., tuple[nn.Module, Backward]], name: str, options: dict[str, Any], device: torch.device
) -> None:
    def made(on: torch.device) -> Callable[[int], list[Tensor]]:
        torch.manual_seed(0)
        model, backward = build(on)
        lr = 1.0 if name == "Adadelta" else 0.05
        optimizer = getattr(mg.optim, name)(model.parameters(), lr=lr, **options)

        def step(k: int) -> list[Tensor]:
            torch.manual_seed(k)
            optimizer.zero_grad()
            backward()
            optimizer.step()
            return list(model.parameters())

        return step

    step = made(torch.device("cpu"))
    expected = [[p.detach().clone() for p in step(k)] for k in range(WARM + STEPS)][-1]
    step = made(device)
    run(step, WARM)
    found, cost = run(step, STEPS, first=WARM)
    assert cost == {}
    torch.testing.assert_close(found[-1], expected, rtol=2e-4, atol=1e-5)
