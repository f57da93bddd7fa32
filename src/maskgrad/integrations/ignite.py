"""PyTorch-Ignite: its metrics refuse MaskedTensors; they take pairs of ``mg.align``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maskgrad.integrations.guarded_metrics import HAND_ON, guarded
from maskgrad.integrations.integration import Integration
from maskgrad.masked_tensor.torch_patches.patch import Patch

__all__ = ["INTEGRATION"]


def _guard_metrics() -> Callable[[], None]:
    """Guard existing classes, and those that ignite defines later."""
    from ignite.metrics.metric import Metric

    undone: list[Callable[[], None]] = []

    def guard(kind: Any) -> None:
        update = vars(kind).get("update")
        if update and kind.__module__.partition(".")[0] == "ignite" and kind.__name__ not in HAND_ON:
            kind.update = guarded(kind.__name__, update, "mg.align(y_pred, y)")
            undone.append(lambda: setattr(kind, "update", update))

    def below(kind: Any) -> None:
        for one in kind.__subclasses__():
            guard(one)
            below(one)

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        super(Metric, cls).__init_subclass__(**kwargs)
        guard(cls)

    def undo() -> None:
        del Metric.__init_subclass__
        for put_back in undone:
            put_back()

    below(Metric)
    Metric.__init_subclass__ = classmethod(init_subclass)
    return undo


INTEGRATION = Integration(
    "ignite",
    without="wrong in silence",
    patches=(
        Patch(
            target="ignite.metrics.metric.Metric.__init_subclass__",
            reason="metrics divide by the number of all entries, and weight batches by it",
            without="metrics of ignite count unspecified entries; return mg.align(y_pred, y) from the engine",
            test="tests/ecosystem/test_ignite.py::test_metrics_refuse",
            needs={"ignite.metrics.metric.Metric.update": "self output"},
            install=_guard_metrics,
            after="ignite.metrics.metric",
        ),
    ),
)
