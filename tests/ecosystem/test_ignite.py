"""ignite: metrics over pairs; training is in test_random_splits.py."""

from __future__ import annotations

import math
from typing import Any

import ignite.metrics
import pytest
import torch
from ignite.engine import Engine
from torch.nn import functional as F

import maskgrad as mg


def run(metric: Any, batch_of: Any) -> Any:
    """The metric over batches of 20 known labels, none, and 3."""
    torch.manual_seed(0)
    data = []
    for number in (20, 0, 3):
        scores, labels, known = torch.randn(24, 5), torch.randint(0, 5, (24,)), torch.arange(24) < number
        data.append((scores, mg.masked(torch.where(known, labels, 99), known)))
    engine = Engine(lambda engine, batch: batch_of(*batch))
    metric.attach(engine, "it")
    return engine.run([one for one in data if one[1].mask.any()]).metrics["it"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ignite.metrics.Loss(F.cross_entropy),
        ignite.metrics.Accuracy,
        lambda: ignite.metrics.ConfusionMatrix(5),
    ],
)
def test_metrics_refuse(make: Any) -> None:
    truth = run(make(), lambda scores, labels: (scores[labels.mask], labels.compressed()))
    torch.testing.assert_close(run(make(), mg.align), truth)
    with pytest.raises(
        mg.UnsupportedOperationError, match=r"\.update.*metric\.update\(mg\.align\(y_pred, y\)\)"
    ):
        run(make(), lambda *pair: pair)


def test_a_mean_of_masked_values() -> None:
    x = mg.from_nan(torch.tensor([1.0, math.nan, 4.0]))
    metric = ignite.metrics.Average()
    with pytest.raises(mg.UnsupportedOperationError, match=r"x\.compressed\(\)"):
        metric.update(x)
    metric.update(x.compressed().unsqueeze(1))
    assert metric.compute() == 2.5
