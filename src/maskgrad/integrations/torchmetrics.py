"""torchmetrics: its metrics and functions refuse MaskedTensors; they take pairs of ``mg.align``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maskgrad.integrations.guarded_metrics import HAND_ON, guarded
from maskgrad.integrations.integration import Integration, exchanged, refusals

__all__ = ["INTEGRATION"]


def _guard(wrap_update: Callable[..., Any], self: Any, update: Any) -> Any:
    """Guard the base class's method that wraps ``update``; wrappers override it."""
    made, name = wrap_update(self, update), type(self).__name__
    is_theirs = update.__module__.partition(".")[0] == "torchmetrics"
    return guarded(name, made, "*mg.align(prediction, target)") if is_theirs and name not in HAND_ON else made


INTEGRATION = Integration(
    "torchmetrics",
    without="wrong in silence",
    patches=(
        exchanged(
            "torchmetrics.metric",
            "Metric._wrap_update",
            "self update",
            _guard,
            reason="metrics divide by the number of all entries",
            without="metrics of torchmetrics count unspecified entries; write "
            "metric.update(*mg.align(prediction, target))",
            test="test_torchmetrics.py::test_metrics_refuse",
        ),
        *refusals(
            "utilities.checks:_check_same_shape utilities.checks:_check_retrieval_functional_inputs "
            "functional.classification.stat_scores:_multiclass_stat_scores_format "
            "functional.classification.confusion_matrix:_multiclass_confusion_matrix_format"
            " functional.classification.precision_recall_curve:_multiclass_precision_recall_curve_format",
            "the functions of torchmetrics divide by the number of all entries",
            "Write function(*mg.align(prediction, target)).",
            "test_torchmetrics.py::test_functions_refuse",
            "torchmetrics.",
        ),
    ),
)
