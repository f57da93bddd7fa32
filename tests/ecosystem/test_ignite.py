"""ignite: metrics over what predictions and targets both have, and training with one denominator."""

from __future__ import annotations

import math
from typing import Any

import ignite.metrics
import ignite.metrics.regression
import pytest
import torch
from ignite.engine import Engine
from ignite.metrics.rec_sys import HitRate
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


def run(metric: Any, data: Any) -> float:
    engine = Engine(lambda engine, batch: batch[:2])
    metric.attach(engine, "it")
    return engine.run(data).metrics["it"]


@one_line("ignite", "metrics", "`mg.metrics.wrap(metric)`")
@pytest.mark.parametrize(
    "make",
    [
        lambda: ignite.metrics.Loss(F.cross_entropy),
        ignite.metrics.Accuracy,
        lambda: ignite.metrics.TopKCategoricalAccuracy(k=2),
        lambda: ignite.metrics.ConfusionMatrix(5),
        ignite.metrics.Precision,
    ],
)
def test_classes_by_deletion(make: Any) -> None:
    data = batches()
    truth = run(make(), [(scores, labels) for *_, scores, labels in data if len(labels)])
    torch.testing.assert_close(run(mg.metrics.wrap(make()), data), truth)


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
    wrapped, truth = mg.metrics.wrap(kind()), kind()
    wrapped.update((mg.masked(torch.where(a, x, math.nan), a), mg.masked(torch.where(b, y, 1e38), b)))
    truth.update((x[a & b], y[a & b]))
    torch.testing.assert_close(wrapped.compute(), truth.compute())
    wrapped.reset()
    with pytest.raises(ignite.exceptions.NotComputableError):
        wrapped.compute()


def test_outputs_in_mappings_with_options_and_arithmetic() -> None:
    data = batches()
    loss = ignite.metrics.Loss(
        F.cross_entropy, output_transform=lambda out: {"y_pred": out[0], "y": out[1], "criterion_kwargs": {}}
    )
    truth = F.cross_entropy(torch.cat([d[2] for d in data]), torch.cat([d[3] for d in data])).item()
    assert run(mg.metrics.wrap(loss), data) == pytest.approx(truth)
    options = mg.metrics.wrap(ignite.metrics.Loss(F.cross_entropy))
    options.update((*data[0][:2], {"reduction": "mean"}))
    assert options.compute() == pytest.approx(F.cross_entropy(*data[0][2:]).item())
    twice = mg.metrics.wrap(ignite.metrics.Loss(F.cross_entropy)) * 2
    assert run(twice, data) == pytest.approx(2 * truth)


@refused("ignite", "unwrapped metrics", "`mg.metrics.wrap(metric)`")
@pytest.mark.parametrize(
    "make",
    [
        ignite.metrics.MeanSquaredError,
        ignite.metrics.Accuracy,
        ignite.metrics.regression.R2Score,
        lambda: ignite.metrics.Loss(F.cross_entropy),
        lambda: ignite.metrics.MeanSquaredError() * 2,
    ],
)
def test_metrics_that_are_not_wrapped_refuse(make: Any) -> None:
    scores, labels, *_ = batches()[0]
    with pytest.raises(mg.UnsupportedOperationError, match=r"\.update.*mg\.metrics\.wrap\(metric\)"):
        make().update((scores[:, 0], labels))
    with pytest.raises(mg.UnsupportedOperationError, match=r"\.update.*mg\.metrics\.wrap\(metric\)"):
        run(make(), batches())


@refused("ignite", "metrics of samples and columns", "`mg.align` for each sample or column")
def test_what_flat_tensors_cannot_say_is_refused() -> None:
    for metric in (ignite.metrics.MeanPairwiseDistance(), HitRate(top_k=[1])):
        with pytest.raises(ValueError, match=r"reads samples.*mg.align\(y_pred\[i\], y\[i\]\)"):
            mg.metrics.wrap(metric)
    with pytest.raises(ValueError, match=r"reads columns"):
        mg.metrics.wrap(ignite.metrics.Accuracy(is_multilabel=True))
    one = ignite.metrics.MeanSquaredError()
    for metric in (one * 2, ignite.metrics.RunningAverage(one)):
        with pytest.raises(TypeError, match=r"computed from other metrics.*mg.metrics.wrap\(metric\)"):
            mg.metrics.wrap(metric)
    with pytest.raises(TypeError, match=r"x.compressed\(\).unsqueeze\(1\)"):
        mg.metrics.wrap(ignite.metrics.Average()).update(mg.masked(torch.ones(3)))


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
