"""Metrics of torchmetrics get pairs from mg.align; the truth is the metric on the pairs of both masks."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
import torchmetrics
import torchmetrics.classification as classification
import torchmetrics.regression as regression
from torch import Tensor

import maskgrad as mg
from tests.ecosystem.rows import one_line, refused

NAN = math.nan
pytestmark = pytest.mark.filterwarnings(
    "ignore:Metric .* will save all targets and predictions in the buffer"
)


def batches(seed: int = 0, number: int = 3) -> list[tuple[Any, Any, Tensor, Tensor]]:
    """Masked predictions and targets with garbage under the masks, and their pairs; one batch has none."""
    torch.manual_seed(seed)
    found = []
    for size in range(2, 2 + number):
        x, y = torch.rand(size, 5) + 0.1, torch.rand(size, 5) + 0.1
        a, b = torch.rand(size, 5) > 0.3, torch.rand(size, 5) > 0.3
        pair = mg.masked(torch.where(a, x, NAN), a), mg.masked(torch.where(b, y, 1e38), b)
        found.append((*pair, x[a & b], y[a & b]))
    half = torch.arange(5) < 2
    found.insert(1, (mg.masked(torch.ones(5), half), mg.masked(torch.ones(5), ~half), *torch.ones(2, 0)))
    return found


@one_line("torchmetrics", "regression and correlation", "`metric.update(*mg.align(prediction, target))`")
@refused(
    "torchmetrics",
    "MaskedTensors in `update` and `forward`",
    "`metric.update(*mg.align(prediction, target))`",
)
@pytest.mark.parametrize("name", ["MeanSquaredError", "PearsonCorrCoef", "R2Score"])
def test_metrics_refuse(name: str) -> None:
    x, y, *_ = batches()[0]
    metric = getattr(regression, name)()
    for call in (metric.update, metric, torchmetrics.MetricCollection([metric]).update):
        with pytest.raises(
            mg.UnsupportedOperationError,
            match=rf"{name}\.update.*flat.*metric\.update\(\*mg\.align\(prediction, target\)\)",
        ):
            call(x.flatten(), target=y.flatten())
    assert not metric.update_called
    for again in (metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        truth = getattr(regression, name)()
        for a, b, c, d in batches():
            if len(pair := mg.align(a, b)[0]):
                again.update(*mg.align(a, b))
                truth.update(c, d)
            assert len(pair) == len(c)
        torch.testing.assert_close(again.compute(), truth.compute())
        with pytest.raises(mg.UnsupportedOperationError):
            again.update(x, y)


@one_line("torchmetrics", "classification", "`metric.update(*mg.align(scores, labels))`")
@pytest.mark.parametrize("name", ["MulticlassAccuracy", "MulticlassAUROC", "MulticlassConfusionMatrix"])
def test_classes_by_deletion(name: str) -> None:
    metric, truth = (getattr(classification, name)(num_classes=3) for _ in range(2))
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are never predicted
        for _ in range(2):
            scores, labels = torch.rand(9, 3).softmax(1), torch.randint(0, 3, (9,))
            a, b = torch.rand(9) > 0.2, torch.rand(9) > 0.2
            pairs = mg.align(
                mg.masked(torch.where(a[:, None], scores, NAN), a[:, None]),
                mg.masked(torch.where(b, labels, 77), b),
            )
            metric.update(*pairs)
            truth.update(scores[a & b], labels[a & b])
        torch.testing.assert_close(metric.compute(), truth.compute(), equal_nan=True)


@one_line("torchmetrics", "`MeanMetric` of values and weights", "`metric.update(*mg.align(values, weights))`")
def test_means_with_weights_and_retrieval() -> None:
    mean = torchmetrics.MeanMetric()
    values, weights = torch.tensor([1.0, NAN, 3.0, 5.0]), torch.tensor([1.0, 1.0, 3.0, 9.0])
    with pytest.raises(mg.UnsupportedOperationError, match=r"metric.update\(x\.compressed\(\)\)"):
        mean.update(mg.from_nan(values))
    mean.update(mg.from_nan(values).compressed())
    assert mean.compute() == 3
    mean.reset()
    mean.update(*mg.align(mg.from_nan(values), mg.masked(weights, weights < 9)))
    assert mean.compute() == (1 + 9) / 4
    found, known = torchmetrics.retrieval.RetrievalMRR(), torch.tensor([True, False, True, True])
    ranked = mg.masked(torch.tensor([0.2, 0.9, 0.3, 0.1]), known)
    found.update(*mg.align(ranked, torch.tensor([True, True, False, True]), torch.tensor([0, 0, 0, 1])))
    assert found.compute() == 0.75


@refused("torchmetrics", "`torchmetrics.functional`", "`function(*mg.align(prediction, target))`")
@pytest.mark.parametrize(
    ("function", "prediction", "target"),
    [
        (torchmetrics.functional.mean_squared_error, torch.rand(12), torch.rand(12)),
        (torchmetrics.functional.pearson_corrcoef, torch.rand(12), torch.rand(12)),
        (torchmetrics.functional.classification.binary_accuracy, torch.rand(12), torch.arange(12) % 2),
        (torchmetrics.functional.retrieval.retrieval_precision, torch.rand(12), torch.arange(12) % 2),
    ],
)
def test_functions_refuse(function: Any, prediction: Tensor, target: Tensor) -> None:
    known = torch.arange(12) % 3 > 0
    x, y = mg.masked(prediction, known), mg.masked(target, known)
    with pytest.raises(TypeError, match=r"mg\.align|must be a plain tensor"):
        function(x, y)
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
