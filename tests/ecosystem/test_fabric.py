"""Lightning Fabric: the recipe of its page, against one pass over the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

import maskgrad as mg
from tests.ecosystem.micro_batches import Tagger, batch, cut, losses_of, moved, one_pass, recipe

STEPS = 3


def train(
    fabric: Any, model: Any, steps: list[list[Any]], form: str = "masked", clip: float = 0.3
) -> tuple[Any, list[float]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = fabric.setup(model, optimizer)
    layout = "jagged" if form == "jagged" else "masked"
    means = []
    for micro_batches in steps:
        mean = recipe("fabric_loop", "propagate")(
            fabric, model, micro_batches, lambda *given: losses_of(*given, layout)[0]
        )
        means.append(float(mean))
        mg.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return model, means


def test_mixed_precision_is_a_backward_of_fabric() -> None:
    batches, truth = [batch(seed) for seed in range(STEPS)], Tagger()
    one_pass(truth, batches)
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    model, _ = train(fabric, Tagger(), [cut(seed, *whole, 4) for seed, whole in enumerate(batches)])
    assert 1e-6 < moved(model, truth) < 0.02
    with pytest.raises(RuntimeError, match=r"fabric\.backward"):
        model(batches[0][0]).sum().backward()
