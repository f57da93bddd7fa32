"""Metrics of torchmetrics get pairs from mg.align; the truth is the metric on the pairs of both masks."""

from __future__ import annotations

import copy
import importlib
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
from tests.ranks import run_on_ranks

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


PAIRS = [
    *("ConcordanceCorrCoef", "KendallRankCorrCoef", "LogCoshError", "MeanAbsoluteError", "PearsonCorrCoef"),
    *("MeanAbsolutePercentageError", "MeanSquaredError", "MeanSquaredLogError", "SpearmanCorrCoef"),
    *("SymmetricMeanAbsolutePercentageError", "TweedieDevianceScore", "WeightedMeanAbsolutePercentageError"),
    "NormalizedRootMeanSquaredError",
]
READ_MATRICES = ["ExplainedVariance", "R2Score", "RelativeSquaredError"]


@one_line("torchmetrics", "regression and correlation", "`metric.update(*mg.align(prediction, target))`")
@refused(
    "torchmetrics",
    "MaskedTensors in `update` and `forward`",
    "`metric.update(*mg.align(prediction, target))`",
)
@pytest.mark.parametrize("name", [*PAIRS, *READ_MATRICES])
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


@one_line("torchmetrics", "outputs in columns", "a metric for each column")
@pytest.mark.parametrize("name", READ_MATRICES)
def test_each_column_is_an_output_with_a_metric_of_its_own(name: str) -> None:
    torch.manual_seed(2)
    x, y, known = torch.rand(9, 2), torch.rand(9, 2), torch.rand(9, 2) > 0.3
    prediction, target = mg.masked(torch.where(known, x, NAN), known), y
    for i in range(2):
        metric, truth = getattr(regression, name)(), getattr(regression, name)()
        metric.update(*mg.align(prediction[:, i], target[:, i]))
        truth.update(x[known[:, i], i], y[known[:, i], i])
        torch.testing.assert_close(metric.compute(), truth.compute())


MULTICLASS = sorted(
    name for name in classification.__all__ if name.startswith("Multiclass") and "At" not in name
)


@one_line("torchmetrics", "classification", "`metric.update(*mg.align(scores, labels))`")
@pytest.mark.parametrize("name", MULTICLASS)
def test_classes_by_deletion(name: str) -> None:
    options = {"beta": 2.0} if "FBeta" in name else {}
    metric, truth = (getattr(classification, name)(num_classes=3, **options) for _ in range(2))
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


@one_line("torchmetrics", "`MetricCollection`", "`collection.update(*mg.align(prediction, target))`")
def test_collections() -> None:
    metrics = torchmetrics.MetricCollection(
        {"mse": torchmetrics.MeanSquaredError(), "mae": torchmetrics.MeanAbsoluteError()}
    )
    for x, y, *_ in batches():
        metrics.update(*mg.align(x, y))
    left, right = (torch.cat(part) for part in list(zip(*batches(), strict=True))[2:])
    truth = {"mse": (left - right).square().mean(), "mae": (left - right).abs().mean()}
    torch.testing.assert_close(metrics.compute(), truth)


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


FUNCTIONS = {
    "mean_absolute_percentage_error": "floats",
    "mean_squared_error": "floats",
    "r2_score": "floats",
    "pearson_corrcoef": "floats",
    "structural_similarity_index_measure": "images",
    "scale_invariant_signal_distortion_ratio": "floats",
    "retrieval_hit_rate": "binary",
    "retrieval_precision": "binary",
    "binary_accuracy": "binary",
    "binary_f1_score": "binary",
    "multiclass_accuracy": "classes",
    "multiclass_confusion_matrix": "classes",
    "multiclass_exact_match": "classes",
    "multiclass_matthews_corrcoef": "classes",
    "multiclass_auroc": "scores",
    "multiclass_precision": "scores",
}


@refused("torchmetrics", "`torchmetrics.functional`", "`function(*mg.align(prediction, target))`")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_refuse(name: str) -> None:
    torch.manual_seed(0)
    classes = torch.randint(0, 3, (12,))
    prediction, target = {
        "floats": (torch.rand(12), torch.rand(12)),
        "images": (torch.rand(12, 1, 16, 16), torch.rand(12, 1, 16, 16)),
        "binary": (torch.rand(12), classes.clamp(max=1)),
        "classes": (torch.randint(0, 3, (12,)), classes),
        "scores": (torch.rand(12, 3).softmax(1), classes),
    }[FUNCTIONS[name]]
    domains = ("regression", "classification", "image", "audio", "retrieval")
    modules = [importlib.import_module(f"torchmetrics.functional.{domain}") for domain in domains]
    function = next(vars(module)[name] for module in modules if name in vars(module))
    options = {"num_classes": 3} if name.startswith("multiclass") else {}
    known = torch.arange(12) % 3 > 0
    shape = known.view(-1, *(1,) * (prediction.ndim - 1))
    x, y = mg.masked(prediction, shape), mg.masked(target, known.view(-1, *(1,) * (target.ndim - 1)))
    with pytest.raises(TypeError, match=r"mg\.align|must be a plain tensor"):
        function(x, y, **options)
    if FUNCTIONS[name] != "images":
        truth = function(prediction[known], target[known], **options)
        torch.testing.assert_close(function(*mg.align(x, y), **options), truth)


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


def _on_ranks(rank: int, world_size: int, name: str, empty: bool) -> float:
    metric = getattr(torchmetrics, name)()
    own = batches(rank, 2 + rank)
    for x, y, *_ in own[1:2] if empty and rank == 0 else own:
        prediction, target = mg.align(x, y)
        if len(target):
            metric.update(prediction, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compute before update, on the rank without data
        return float(metric.compute())


@pytest.mark.parametrize("name", ["MeanSquaredError", "PearsonCorrCoef", "SpearmanCorrCoef"])
@pytest.mark.parametrize("empty", [False, True])
def test_two_ranks(name: str, empty: bool) -> None:
    truth = getattr(torchmetrics, name)()
    for rank in (0, 1):
        if not (empty and rank == 0):
            for _, _, left, right in batches(rank, 2 + rank):
                if len(left):
                    truth.update(left, right)
    found = run_on_ranks(_on_ranks, 2, name, empty)
    torch.testing.assert_close(found, [float(truth.compute())] * 2, rtol=1e-5, atol=1e-6)
