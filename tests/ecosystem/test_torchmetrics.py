"""mg.metrics.wrap on the metrics of torchmetrics; the truth is the metric on what is left."""

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
    """Masked predictions and targets with garbage under the masks, and what both have; one batch has nothing."""
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


@one_line("torchmetrics", "regression and correlation", "`mg.metrics.wrap(metric)`")
@pytest.mark.parametrize("name", PAIRS)
def test_regression_by_deletion(name: str) -> None:
    wrapped, truth = mg.metrics.wrap(getattr(regression, name)()), getattr(regression, name)()
    for x, y, left, right in batches():
        wrapped.update(x, y)
        if len(left):
            truth.update(left, right)
    torch.testing.assert_close(wrapped.compute(), truth.compute())
    wrapped.reset()
    assert not wrapped.update_called


@pytest.mark.parametrize("name", READ_MATRICES)
def test_columns_are_outputs_and_need_a_metric_each(name: str) -> None:
    x, y, left, right = batches()[0]
    metric = mg.metrics.wrap(getattr(regression, name)())
    with pytest.raises(
        ValueError, match=rf"{name} reads the columns of a matrix, found \(2, 5\).*prediction\[:, i\]"
    ):
        metric.update(x, y)
    metric.update(x.flatten(), y.flatten())
    truth = getattr(regression, name)()
    truth.update(left, right)
    torch.testing.assert_close(metric.compute(), truth.compute())


MULTICLASS = sorted(
    name for name in classification.__all__ if name.startswith("Multiclass") and "At" not in name
)


@one_line("torchmetrics", "classification", "`mg.metrics.wrap(metric)`")
@pytest.mark.parametrize("name", MULTICLASS)
def test_classes_by_deletion(name: str) -> None:
    options = {"beta": 2.0} if "FBeta" in name else {}
    wrapped = mg.metrics.wrap(getattr(classification, name)(num_classes=3, **options))
    truth = getattr(classification, name)(num_classes=3, **options)
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are never predicted
        for _ in range(2):
            scores, labels = torch.rand(9, 3).softmax(1), torch.randint(0, 3, (9,))
            a, b = torch.rand(9) > 0.2, torch.rand(9) > 0.2
            wrapped.update(
                mg.masked(torch.where(a[:, None], scores, NAN), a[:, None]),
                mg.masked(torch.where(b, labels, 77), b),
            )
            truth.update(scores[a & b], labels[a & b])
        torch.testing.assert_close(wrapped.compute(), truth.compute(), equal_nan=True)


def test_every_metric_that_reads_matrices_is_known() -> None:
    """What torchmetrics computes otherwise for a matrix than for its pairs is refused for matrices."""
    torch.manual_seed(2)
    x, y = torch.rand(6, 4) + 0.1, torch.rand(6, 4) + 0.1
    probabilities, labels = torch.rand(6, 3, 4).softmax(1), torch.randint(0, 3, (6, 4))
    differing = []
    for name in [*regression.__all__, *MULTICLASS]:
        if name.startswith("Multiclass"):
            options = {"num_classes": 3} | ({"beta": 2.0} if "FBeta" in name else {})
            whole, flat = (probabilities, labels), mg.align(probabilities, labels)
        else:
            options = {"p": 3} if name == "MinkowskiDistance" else {}
            options |= {"threshold": 0.5} if name == "CriticalSuccessIndex" else {}
            whole, flat = (x, y), mg.align(x, y)
        found = []
        for pair in (whole, flat):
            module = classification if name.startswith("Multiclass") else regression
            metric = getattr(module, name)(**options)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    metric.update(*pair)
                    found.append(metric.compute())
            except (ValueError, RuntimeError, IndexError):
                found.append(None)
        if found[0] is None or found[1] is None:
            continue
        try:
            torch.testing.assert_close(*found, equal_nan=True)
        except AssertionError:
            differing.append(name)
            with pytest.raises(ValueError, match="reads the columns of a matrix"):
                mg.metrics.wrap(getattr(module, name)(**options)).update(*map(mg.masked, whole))
    assert set(differing) == {"ExplainedVariance", "R2Score", "MulticlassExactMatch"}


@one_line("torchmetrics", "`MetricCollection`", "`mg.metrics.wrap(collection)`")
def test_collections() -> None:
    def collection() -> Any:
        return torchmetrics.MetricCollection(
            {"mse": torchmetrics.MeanSquaredError(), "mae": torchmetrics.MeanAbsoluteError()}, prefix="val_"
        )

    wrapped, truth = mg.metrics.wrap(collection()), collection()
    for x, y, left, right in batches():
        step = wrapped(x, y)
        if len(left):
            torch.testing.assert_close(step, truth(left, right))
        else:
            assert step is None
    torch.testing.assert_close(wrapped.compute(), truth.compute())
    assert isinstance(wrapped, torchmetrics.MetricCollection)
    inside = torchmetrics.MetricCollection({"mse": mg.metrics.wrap(torchmetrics.MeanSquaredError())})
    inside.update(*batches()[0][:2])
    assert inside.compute()["mse"] == torchmetrics.functional.mean_squared_error(*batches()[0][2:])
    wrapped.reset()
    assert wrapped["mse"].update_count == 0


def test_forward_reset_copies_and_files() -> None:
    wrapped, truth = mg.metrics.wrap(torchmetrics.MeanAbsoluteError()), torchmetrics.MeanAbsoluteError()
    for x, y, left, right in batches():
        step = wrapped(x, y)
        assert step is None if not len(left) else torch.equal(step, truth(left, right))
    for again in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped)), wrapped.clone()):
        assert again.compute() == truth.compute()
    assert wrapped.update_count == 3
    wrapped.reset()
    assert wrapped.metric.update_count == 0


def test_means_with_weights_and_retrieval() -> None:
    mean = mg.metrics.wrap(torchmetrics.MeanMetric())
    values, weights = torch.tensor([1.0, NAN, 3.0, 5.0]), torch.tensor([1.0, 1.0, 3.0, 9.0])
    mean.update(mg.from_nan(values), mg.masked(weights, weights < 9))
    assert mean.compute() == (1 + 9) / 4
    found = mg.metrics.wrap(torchmetrics.retrieval.RetrievalMRR())
    known = torch.tensor([True, False, True, True])
    found.update(
        mg.masked(torch.tensor([0.2, 0.9, 0.3, 0.1]), known),
        torch.tensor([True, True, False, True]),
        indexes=torch.tensor([0, 0, 0, 1]),
    )
    assert found.compute() == 0.75


@refused("torchmetrics", "metrics of columns and samples", "`mg.align`, one metric for each column")
def test_what_flat_tensors_cannot_say_is_refused() -> None:
    for metric, text in (
        (torchmetrics.MeanSquaredError(num_outputs=2), r"num_outputs=2.*prediction\[:, i\]"),
        (classification.MultilabelAccuracy(num_labels=3), "num_labels=3"),
        (classification.MulticlassAccuracy(3, multidim_average="samplewise"), "loop over samples"),
        (torchmetrics.MeanSquaredError(dist_sync_on_step=True), "would wait for one that skips a step"),
        (
            torchmetrics.audio.SignalNoiseRatio(),
            r"reads whole samples.*mg.align\(prediction\[i\], target\[i\]\)",
        ),
        (torchmetrics.image.StructuralSimilarityIndexMeasure(), "reads whole samples"),
        (torchmetrics.text.Perplexity(), "reads whole samples"),
        (torchmetrics.MultioutputWrapper(torchmetrics.MeanSquaredError(), 2), "reads whole samples"),
        (torchmetrics.MetricCollection([torchmetrics.MeanSquaredError(num_outputs=2)]), "num_outputs=2"),
    ):
        with pytest.raises(ValueError, match=text):
            mg.metrics.wrap(metric)
    two = torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()
    with pytest.raises(TypeError, match=r"mg.metrics.wrap\(a\) \+ mg.metrics.wrap\(b\)"):
        mg.metrics.wrap(two[0] + two[1])
    with pytest.raises(TypeError, match=r"MetricTracker\(mg.metrics.wrap\(metric\)\)"):
        mg.metrics.wrap(torchmetrics.MetricTracker(two[0]))
    together = mg.metrics.wrap(two[0]) + mg.metrics.wrap(two[1])
    x, y, left, right = batches()[0]
    together.update(x, y)
    torch.testing.assert_close(
        together.compute(), (left - right).square().mean() + (left - right).abs().mean()
    )


@refused("torchmetrics", "unwrapped metrics", "`mg.metrics.wrap(metric)`")
@pytest.mark.parametrize("name", [*PAIRS, *READ_MATRICES])
def test_metrics_that_are_not_wrapped_refuse(name: str) -> None:
    x, y, left, right = batches()[0]
    metric = getattr(regression, name)()
    for call in (metric.update, metric, torchmetrics.MetricCollection([metric]).update):
        with pytest.raises(
            mg.UnsupportedOperationError,
            match=rf"{name}\.update.*mg\.metrics\.wrap\(metric\).*update\(\*mg\.align",
        ):
            call(x.flatten(), target=y.flatten())
    assert not metric.update_called
    for again in (metric, copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        again.update(*mg.align(x, y))
        truth = getattr(regression, name)()
        truth.update(left, right)
        torch.testing.assert_close(again.compute(), truth.compute())
        with pytest.raises(mg.UnsupportedOperationError):
            again.update(x, y)


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


def test_update_records_no_gradient_and_forward_does() -> None:
    x = torch.rand(90, 100, requires_grad=True)  # large enough for the compiled body
    mask = torch.rand(90, 100) > 0.3
    metric = mg.metrics.wrap(torchmetrics.MeanSquaredError())
    metric.update(mg.masked(x, mask), torch.zeros(90, 100))
    assert not metric.metric.sum_squared_error.requires_grad
    metric(mg.masked(x, mask), torch.zeros(90, 100)).backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.where(mask, 2 * x.detach() / mask.sum(), 0))


def _on_ranks(rank: int, world_size: int, name: str, empty: bool) -> tuple[Any, Any]:
    metric = mg.metrics.wrap(getattr(torchmetrics, name)())
    mine = batches(rank, 2 + rank)
    for x, y, *_ in mine[1:2] if empty and rank == 0 else mine:
        metric.update(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compute before update, on the rank without data
        found = metric.compute()
    return float(found), int(metric.update_count)


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
    torch.testing.assert_close(
        [value for value, _ in found], [float(truth.compute())] * 2, rtol=1e-5, atol=1e-6
    )
