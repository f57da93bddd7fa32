"""ignite: metrics over pairs, and training with one denominator."""

from __future__ import annotations

import math
from typing import Any

import ignite.metrics
import ignite.metrics.regression
import pytest
import torch
from ignite.engine import Engine
from torch.nn import functional as F

import maskgrad as mg
from tests.ecosystem.micro_batches import Tagger, batch, cut, losses_of, moved, one_pass, recipe
from tests.ecosystem.rows import one_line, refused


def batches() -> list[tuple[Any, Any, torch.Tensor, torch.Tensor]]:
    """Scores and masked labels: 20 of them, none, and 3."""
    torch.manual_seed(0)
    found = []
    for number in (20, 0, 3):
        scores, labels = torch.randn(24, 5) * (1 + 5 * (number == 3)), torch.randint(0, 5, (24,))
        known = torch.arange(24) < number
        found.append(
            (scores, mg.masked(torch.where(known, labels, 99), known), scores[:number], labels[:number])
        )
    return found


def run(metric: Any, data: Any, align: bool = True) -> float:
    engine = Engine(lambda engine, batch: mg.align(*batch[:2]) if align else batch[:2])
    metric.attach(engine, "it")
    return engine.run(data).metrics["it"]


@one_line("ignite", "metrics", "`Engine(lambda engine, batch: mg.align(y_pred, y))`")
@refused("ignite", "MaskedTensors in metrics", "`mg.align(y_pred, y)`")
@pytest.mark.parametrize(
    "make",
    [
        lambda: ignite.metrics.Loss(F.cross_entropy),
        ignite.metrics.Accuracy,
        lambda: ignite.metrics.ConfusionMatrix(5),
    ],
)
def test_metrics_refuse(make: Any) -> None:
    data = [one for one in batches() if len(one[3])]
    truth = run(make(), [(scores, labels) for *_, scores, labels in data])
    torch.testing.assert_close(run(make(), data), truth)
    for call in (lambda: make().update(data[0][:2]), lambda: run(make(), data, align=False)):
        with pytest.raises(
            mg.UnsupportedOperationError, match=r"\.update.*metric\.update\(mg\.align\(y_pred, y\)\)"
        ):
            call()


@one_line("ignite", "`Average` of masked values", "`x.compressed().unsqueeze(1)`")
def test_a_mean_of_masked_values() -> None:
    x = mg.from_nan(torch.tensor([1.0, math.nan, 4.0]))
    metric = ignite.metrics.Average()
    with pytest.raises(mg.UnsupportedOperationError, match=r"x\.compressed\(\)"):
        metric.update(x)
    metric.update(x.compressed().unsqueeze(1))
    assert metric.compute() == 2.5


def train(model: Any, micro: list[Any], form: str, every: int, max_norm: float, **options: Any) -> None:
    step = recipe("ignite_engine", "training_step")(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        lambda model, x, y: losses_of(model, x, y, form),
        every=every,
        max_norm=max_norm,
        prepare=tuple,
    )
    Engine(step).run(micro, **options)


def test_the_last_step_of_an_epoch_has_the_remaining_iterations() -> None:
    micro = cut(2, *batch(2), 5)
    model, truth = Tagger(), Tagger()
    train(model, micro, "masked", every=3, max_norm=0.3, max_epochs=2)
    parts = [tuple(torch.cat(t) for t in zip(*some, strict=True)) for some in (micro[:3], micro[3:])]
    one_pass(truth, parts * 2)  # type: ignore[arg-type]
    assert moved(model, truth) < 1e-6
