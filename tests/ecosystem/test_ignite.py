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
from tests.ecosystem.micro_batches import FORMS, Tagger, batch, cut, losses_of, moved, one_pass
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
        lambda: ignite.metrics.Loss(F.cross_entropy) * 2,
        ignite.metrics.Accuracy,
        lambda: ignite.metrics.TopKCategoricalAccuracy(k=2),
        lambda: ignite.metrics.ConfusionMatrix(5),
        ignite.metrics.Precision,
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


@pytest.mark.parametrize(
    "kind",
    [
        ignite.metrics.MeanSquaredError,
        ignite.metrics.MeanAbsoluteError,
        ignite.metrics.regression.R2Score,
        ignite.metrics.regression.PearsonCorrelation,
        ignite.metrics.regression.MedianAbsoluteError,
    ],
)
def test_pairs_by_deletion(kind: Any) -> None:
    torch.manual_seed(1)
    x, y, a, b = torch.rand(6, 4), torch.rand(6, 4), torch.rand(6, 4) > 0.3, torch.rand(6, 4) > 0.3
    metric, truth = kind(), kind()
    metric.update(mg.align(mg.masked(torch.where(a, x, math.nan), a), mg.masked(torch.where(b, y, 1e38), b)))
    truth.update((x[a & b], y[a & b]))
    torch.testing.assert_close(metric.compute(), truth.compute())


@one_line("ignite", "`Average` of masked values", "`x.compressed().unsqueeze(1)`")
def test_a_mean_of_masked_values() -> None:
    x = mg.from_nan(torch.tensor([1.0, math.nan, 4.0]))
    metric = ignite.metrics.Average()
    with pytest.raises(mg.UnsupportedOperationError, match=r"x\.compressed\(\)"):
        metric.update(x)
    metric.update(x.compressed().unsqueeze(1))
    assert metric.compute() == 2.5


@one_line("ignite", "training, micro-batches", "`mg.integrations.ignite_training_step`")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_step_is_one_pass(form: str, sparse: bool) -> None:
    wholes, truth = [batch(seed) for seed in range(3)], Tagger()
    one_pass(truth, wholes)
    micro = [piece for seed, whole in enumerate(wholes) for piece in cut(seed, *whole, 4)]
    model = Tagger(sparse)
    step = mg.integrations.ignite_training_step(
        _Tokens(model),
        torch.optim.SGD(model.parameters(), lr=0.5),
        lambda model, pair: losses_of(model, *pair, form),
        gradient_accumulation_steps=4,
        max_norm=0.3,
        prepare_batch=lambda pair: (pair[0], pair),
    )
    Engine(step).run(micro)
    assert moved(model, truth) < 1e-6


class _Tokens(torch.nn.Module):
    """Hands the model itself on, so that the loss can call it with what it needs."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, _: Any) -> torch.nn.Module:
        return self.model


def test_epochs_end_within_a_step_and_outputs_are_means() -> None:
    micro = cut(2, *batch(2), 5)
    model, truth = Tagger(), Tagger()
    step = mg.integrations.ignite_training_step(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        lambda scores, y: F.cross_entropy(
            scores.movedim(-1, 1), mg.masked(y.clamp(min=0), y != -100), reduction="none"
        ),
        gradient_accumulation_steps=3,
        max_norm=0.3,
        scaler=torch.amp.GradScaler("cpu", init_scale=1024.0),
    )
    engine = Engine(step)
    engine.run(micro, max_epochs=2)
    parts = [tuple(torch.cat(t) for t in zip(*some, strict=True)) for some in (micro[:3], micro[3:])]
    one_pass(truth, parts * 2)  # type: ignore[arg-type]
    assert moved(model, truth) < 1e-6
    assert isinstance(engine.state.output, float)
    with pytest.raises(ValueError, match="must be 1 or more, found 0"):
        mg.integrations.ignite_training_step(model, None, None, gradient_accumulation_steps=0)
