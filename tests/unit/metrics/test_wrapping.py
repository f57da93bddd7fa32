"""mg.metrics.wrap on metrics of nobody's library; those of torchmetrics and ignite are in tests/ecosystem."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import maskgrad as mg


class Recorder:
    """Remembers what it was given, and gives the mean of the products."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def update(self, prediction: Any, target: Any = None, *rest: Any, **options: Any) -> None:
        self.seen.append((prediction, target, *rest, *options.values()))

    def compute(self) -> float:
        pairs = [(p * t).sum() for p, t, *_ in self.seen]
        return float(sum(pairs)) / sum(len(p) for p, *_ in self.seen)

    def reset(self) -> None:
        self.seen.clear()

    def __call__(self, prediction: Tensor, target: Tensor) -> float:
        self.update(prediction, target)
        return float((prediction * target).mean())


def holes(values: list[float]) -> mg.MaskedTensor:
    return mg.from_nan(torch.tensor(values))


NAN = math.nan


def test_batches_count_what_both_sides_have() -> None:
    metric = mg.metrics.wrap(Recorder())
    metric.update(holes([1.0, 2.0, NAN]), holes([NAN, 3.0, 1.0]))
    assert metric(holes([2.0, 5.0]), torch.tensor([1.0, 1.0])) == 3.5
    assert metric.compute() == (6 + 2 + 5) / 3
    metric.reset()
    assert metric.metric.seen == []


def test_a_batch_with_nothing_in_common_is_skipped() -> None:
    metric = mg.metrics.wrap(Recorder())
    assert metric(holes([1.0, NAN]), holes([NAN, 1.0])) is None
    metric.update(holes([NAN]), torch.ones(1))
    metric.update(mg.masked(torch.ones(0)), torch.ones(0))
    assert metric.metric.seen == []


def test_plain_tensors_are_handed_on_as_they_are() -> None:
    metric, x = mg.metrics.wrap(Recorder()), torch.ones(2, 3)
    metric.update(x, x, "as it is", [1, 2])
    assert metric.metric.seen[0][0] is x
    assert metric.metric.seen[0][2:] == ("as it is", [1, 2])


def test_keywords_weights_and_options() -> None:
    metric, one = mg.metrics.wrap(Recorder()), torch.tensor(1.0)
    metric.update(
        holes([1.0, NAN, 3.0]), target=torch.arange(3.0), weight=holes([NAN, 1.0, 4.0]), option="x", scale=one
    )
    prediction, target, weight, option, scale = metric.metric.seen[0]
    assert (prediction.tolist(), target.tolist(), weight.tolist()) == ([3.0], [2.0], [4.0])
    assert option == "x"
    assert scale is one


def test_one_tensor_and_scores() -> None:
    metric = mg.metrics.wrap(Recorder(), class_dim=-1)
    metric.update(holes([1.0, NAN]))
    scores, labels = torch.rand(2, 3, 4), torch.tensor([[0, 1, 2], [3, 0, 1]])
    metric.update(scores, mg.masked(labels, labels > 0))
    torch.testing.assert_close(metric.metric.seen[1], (scores[labels > 0], labels[labels > 0]))
    assert metric.metric.seen[0][0].tolist() == [1.0]


def test_copies_and_files() -> None:
    metric = mg.metrics.wrap(Recorder())
    metric.update(holes([1.0, NAN]), torch.ones(2))
    for again in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        again.update(holes([NAN, 5.0]), torch.ones(2))
        assert (again.compute(), metric.compute()) == (3.0, 1.0)
    assert repr(metric).startswith("mg.metrics.wrap(<")


def test_data_that_is_no_tensor_would_be_paired_wrong() -> None:
    metric = mg.metrics.wrap(Recorder())
    for target in ([1.0, 2.0], np.ones(2)):
        with pytest.raises(
            TypeError, match=rf"all arguments with entries must be tensors, found {type(target).__name__}"
        ):
            metric.update(holes([1.0, NAN]), target)
    with pytest.raises(TypeError, match=r"found dict; use torch.as_tensor, or mg.align"):
        metric.update({"x": holes([1.0])}, torch.ones(1))
    assert metric.metric.seen == []


def test_what_is_no_metric() -> None:
    with pytest.raises(
        TypeError, match=r"found the class Recorder; use mg.metrics.wrap\(Recorder\(\.\.\.\)\)"
    ):
        mg.metrics.wrap(Recorder)
    with pytest.raises(TypeError, match=r"without update; for a function.*mg.align\(prediction, target\)"):
        mg.metrics.wrap(torch.nn.functional.mse_loss)


def test_errors_recommend_align_for_pairs() -> None:
    with pytest.raises(mg.UnsupportedOperationError, match=r"mg\.align\(x, y\)"):
        torch._foreach_exp([holes([1.0])])
