"""Metrics of torchmetrics get pairs from mg.align; the truth is the metric on the pairs of both masks."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
import torchmetrics
import torchmetrics.classification as classification
import torchmetrics.regression as regression
from torch import Tensor

import maskgrad as mg
from tests.ecosystem.truth import assert_refused

NAN = math.nan
pytestmark = pytest.mark.filterwarnings(
    "ignore:Metric .* will save all targets and predictions in the buffer"
)


def batches() -> list[tuple[Any, Any, Tensor, Tensor]]:
    """Masked predictions and targets with garbage under the masks, and their pairs."""
    found = []
    for size in (3, 4):
        x, y = torch.rand(size, 5) + 0.1, torch.rand(size, 5) + 0.1
        a, b = torch.rand(size, 5) > 0.3, torch.rand(size, 5) > 0.3
        pair = mg.masked(torch.where(a, x, NAN), a), mg.masked(torch.where(b, y, 1e38), b)
        found.append((*pair, x[a & b], y[a & b]))
    return found


@pytest.mark.parametrize("name", ["MeanSquaredError", "PearsonCorrCoef", "R2Score"])
def test_metrics_refuse(name: str) -> None:
    metric, truth = (getattr(regression, name)() for _ in range(2))
    x, y, *_ = batches()[0]
    for again in (metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        for call in (again.update, again, torchmetrics.MetricCollection([again]).update):
            assert_refused(
                rf"{name}\.update.*flat.*metric\.update\(\*mg\.align\(prediction, target\)\)",
                lambda call=call: call(x.flatten(), target=y.flatten()),
            )
        assert not again.update_called
    for *pair, c, d in batches():
        metric.update(*mg.align(*pair))
        truth.update(c, d)
    torch.testing.assert_close(metric.compute(), truth.compute())


@pytest.mark.parametrize("name", ["MulticlassAccuracy", "MulticlassAUROC", "MulticlassConfusionMatrix"])
def test_classes_by_deletion(name: str) -> None:
    metric, truth = (getattr(classification, name)(num_classes=3) for _ in range(2))
    scores, labels = torch.rand(19, 3).softmax(1), torch.arange(19) % 3
    a, b = torch.rand(19) > 0.2, torch.rand(19) > 0.2
    metric.update(
        *mg.align(
            mg.masked(torch.where(a[:, None], scores, NAN), a[:, None]),
            mg.masked(torch.where(b, labels, 77), b),
        )
    )
    truth.update(scores[a & b], labels[a & b])
    torch.testing.assert_close(metric.compute(), truth.compute())


def test_means_with_weights_and_retrieval() -> None:
    mean, values = torchmetrics.MeanMetric(), mg.from_nan(torch.tensor([1.0, NAN, 3.0, 5.0]))
    assert_refused(r"metric.update\(x\.compressed\(\)\)", lambda: mean.update(values))
    assert mean(values.compressed()) == 3
    weights = torch.tensor([1.0, 1.0, 3.0, 9.0])
    assert mean(*mg.align(values, mg.masked(weights, weights < 9))) == (1 + 9) / 4
    found, known = torchmetrics.retrieval.RetrievalMRR(), torch.tensor([True, False, True, True])
    ranked = mg.masked(torch.tensor([0.2, 0.9, 0.3, 0.1]), known)
    found.update(*mg.align(ranked, torch.tensor([True, True, False, True]), torch.tensor([0, 0, 0, 1])))
    assert found.compute() == 0.75


@pytest.mark.parametrize(
    "function",
    [
        torchmetrics.functional.mean_squared_error,
        torchmetrics.functional.classification.binary_accuracy,
        torchmetrics.functional.retrieval.retrieval_precision,
    ],
)
def test_functions_refuse(function: Any) -> None:
    known, prediction, target = torch.arange(12) % 3 > 0, torch.rand(12), torch.arange(12) % 2
    x, y = mg.masked(prediction, known), mg.masked(target, known)
    assert_refused(r"mg\.align|must be a plain tensor", lambda: function(x, y))
    torch.testing.assert_close(function(*mg.align(x, y)), function(prediction[known], target[known]))


def test_a_metric_of_ones_own_may_know_what_is_specified() -> None:
    class Specified(torchmetrics.Metric):
        def __init__(self) -> None:
            super().__init__()
            self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

        def update(self, x: Any) -> None:
            self.count += x.num_specified()

        def compute(self) -> Tensor:
            return self.count

    metric = Specified()
    metric.update(mg.masked(torch.ones(3), torch.tensor([True, False, True])))
    assert metric.compute() == 2
