"""Lightning Fabric: its loop with mg.integrations.FabricAccumulator, against one pass over the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.fabric import Fabric

import maskgrad as mg
from tests.ecosystem.micro_batches import FORMS, Tagger, batch, cut, losses_of, moved, one_pass
from tests.ecosystem.rows import one_line

STEPS = 3


def train(
    fabric: Any, model: Any, steps: list[list[Any]], form: str = "masked", clip: float = 0.3
) -> tuple[Any, list[float]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = fabric.setup(model, optimizer)
    accumulator = mg.integrations.FabricAccumulator(fabric, model)
    means = []
    for micro_batches in steps:
        for x, y in micro_batches:
            accumulator.backward(*losses_of(model, x, y, form))
        means.append(float(accumulator.finish()))
        mg.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return model, means


@one_line("lightning", "Fabric, micro-batches", "`mg.integrations.FabricAccumulator`")
@pytest.mark.parametrize("form", FORMS)
def test_a_step_is_one_pass(form: str) -> None:
    batches = [batch(seed) for seed in range(STEPS)]
    truth = Tagger()
    means = one_pass(truth, batches)
    fabric = Fabric(accelerator="cpu", devices=1)
    model, found = train(
        fabric, Tagger(), [cut(seed, *whole, 2 + seed) for seed, whole in enumerate(batches)], form
    )
    assert moved(model, truth) < 1e-6
    torch.testing.assert_close(found, means, atol=1e-6, rtol=1e-6)


def test_sparse_tables() -> None:
    batches, truth = [batch(seed) for seed in range(STEPS)], Tagger()
    one_pass(truth, batches)
    fabric = Fabric(accelerator="cpu", devices=1)
    model, _ = train(
        fabric, Tagger(sparse=True), [cut(seed, *whole, 4) for seed, whole in enumerate(batches)]
    )
    assert moved(model, truth) < 1e-6


def test_mixed_precision_is_a_backward_of_fabric() -> None:
    batches, truth = [batch(seed) for seed in range(STEPS)], Tagger()
    one_pass(truth, batches)
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    model, _ = train(fabric, Tagger(), [cut(seed, *whole, 4) for seed, whole in enumerate(batches)])
    assert 1e-6 < moved(model, truth) < 0.02
    with pytest.raises(RuntimeError, match=r"fabric\.backward"):
        model(batches[0][0]).sum().backward()


def test_strategies_that_propagate_by_themselves_are_refused() -> None:
    class DeepSpeedStrategy:
        pass

    class OfDeepSpeed:
        strategy = DeepSpeedStrategy()

    with pytest.raises(
        ValueError, match=r"DeepSpeedStrategy runs the backward pass.* by itself; use DDPStrategy"
    ):
        mg.integrations.FabricAccumulator(OfDeepSpeed(), Tagger())
