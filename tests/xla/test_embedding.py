"""Tables on a device without sparse tensors: dense gradients; bags are summed, passes accumulate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.xla.steps import STEPS, assert_one_graph, run

WARM = 2
OFFSETS = torch.tensor([0, 2, 2, 5])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (mg.nn.Embedding, {}),
        (mg.nn.EmbeddingBag, {"mode": "sum"}),
        (mg.nn.EmbeddingBag, {"mode": "mean", "padding_idx": 1}),
    ],
    ids=str,
)
def test_trained_as_on_the_cpu(kind: Any, options: dict[str, Any], device: torch.device) -> None:
    def train(on: torch.device, steps: int) -> Any:
        torch.manual_seed(0)
        table = kind(7, 3, sparse=False, **options).to(on)
        optimizer = mg.optim.Adagrad(table.parameters(), lr=0.1)

        def step(k: int) -> Tensor:
            torch.manual_seed(k)
            optimizer.zero_grad()
            for _ in range(2):
                rows = torch.randint(7, (8,)).to(on)
                found = table(rows) if kind is mg.nn.Embedding else table(rows, OFFSETS.to(on))
                found.square().sum().backward()
            optimizer.step()
            return table.weight

        return step

    step = train(torch.device("cpu"), WARM + STEPS)
    expected = [step(k).detach().clone() for k in range(WARM + STEPS)][-1]
    step = train(device, WARM + STEPS)
    run(step, WARM)
    found, cost = run(step, STEPS, first=WARM)
    assert_one_graph(cost, compilations=0)
    torch.testing.assert_close(found[-1], expected)
