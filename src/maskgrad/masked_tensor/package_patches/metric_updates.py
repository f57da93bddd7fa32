"""Metrics of torchmetrics and ignite that nobody has wrapped say so: they divide by the number of all entries.

Only what these packages have written refuses: a class of someone else's may know what is specified.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.package_patches.refusing import has_masked
from maskgrad.masked_tensor.torch_patches.exchange import exchange

__all__ = ["guard_ignite", "guard_torchmetrics"]

#: Those that hand on what they are given to other metrics, which may be wrapped.
HAND_ON = ("CompositionalMetric", "MetricGroup", "MetricsLambda")


def _refusing(name: str, update: Callable[..., Any]) -> Callable[..., Any]:
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


def guard_torchmetrics() -> None:
    """Each metric makes its ``update`` with a method of the base class; wrappers, ours among them, have another."""

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrap_update(self: Any, update: Any) -> Any:
            made, name = original(self, update), type(self).__name__
            is_theirs = update.__module__.partition(".")[0] == "torchmetrics"
            return _refusing(name, made) if is_theirs and name not in HAND_ON else made

        return wrap_update

    exchange("torchmetrics.metric.Metric._wrap_update", guarded)


def guard_ignite() -> None:
    """The classes that there are, and those that the package defines later."""
    from ignite.metrics.metric import Metric

    def guard(kind: Any) -> None:
        update = vars(kind).get("update")
        if update and kind.__module__.partition(".")[0] == "ignite" and kind.__name__ not in HAND_ON:
            kind.update = _refusing(kind.__name__, update)

    def below(kind: Any) -> None:
        for one in kind.__subclasses__():
            guard(one)
            below(one)

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        super(Metric, cls).__init_subclass__(**kwargs)
        guard(cls)

    below(Metric)
    Metric.__init_subclass__ = classmethod(init_subclass)
