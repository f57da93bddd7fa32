"""Metrics that divide by the number of all entries refuse MaskedTensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.torch_patches.pytrees import holds_masked

__all__ = ["HAND_ON", "guarded"]

#: Metrics that only pass their arguments to other metrics, which are guarded.
HAND_ON = ("CompositionalMetric", "MetricGroup", "MetricsLambda")


def guarded(name: str, update: Callable[..., Any], pairs: str) -> Callable[..., Any]:
    """Return ``update`` of the metric ``name``, refusing MaskedTensors; it takes ``pairs`` instead."""

    @functools.wraps(update)
    def function(*args: Any, **kwargs: Any) -> Any:
        if holds_masked((args, kwargs)):
            raise UnsupportedOperationError(
                f"{name}.update",
                "it counts unspecified entries, too",
                "Pairs are flat tensors (K,): if this metric reads columns or samples, align each. Write "
                f"metric.update({pairs}), or metric.update(x.compressed()) for a single tensor.",
            )
        return update(*args, **kwargs)

    return function
