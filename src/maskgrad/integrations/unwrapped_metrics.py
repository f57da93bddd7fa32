"""Metrics that divide by the number of all entries refuse MaskedTensors unless wrapped."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.torch_patches.patch import has_masked

__all__ = ["HAND_ON", "guarded"]

#: Metrics that hand on what they are given to other metrics, which may be wrapped.
HAND_ON = ("CompositionalMetric", "MetricGroup", "MetricsLambda")


def guarded(name: str, update: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``update`` of the metric ``name``, refusing MaskedTensors."""

    @functools.wraps(update)
    def function(*args: Any, **kwargs: Any) -> Any:
        if has_masked(args) or has_masked(kwargs):
            raise UnsupportedOperationError(
                f"{name}.update",
                "it counts unspecified entries, too",
                "Write metric = mg.metrics.wrap(metric) once, or metric.update(*mg.align(prediction, target)).",
            )
        return update(*args, **kwargs)

    return function
