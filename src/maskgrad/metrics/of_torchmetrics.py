"""Metrics of torchmetrics: wrapped ones are torchmetrics metrics, for collections and trainers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.metric import CompositionalMetric
from torchmetrics.wrappers import MetricTracker
from torchmetrics.wrappers.abstract import WrapperMetric

from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.metrics.wrapping import FUNCTION, Arguments, aligned_arguments

__all__ = ["MaskedCollection", "MaskedMetric", "wrap_collection", "wrap_metric"]


class MaskedMetric(WrapperMetric):  # type: ignore[misc]
    """A metric of torchmetrics on the common positions of all tensors; states and exchange are those of ``metric``."""

    def __init__(self, metric: Any, class_dim: int | None = None) -> None:
        super().__init__()
        self.metric, self.class_dim = metric, class_dim
        self._needs_pairs = _needs_pairs(metric)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update the metric, unless there are no common positions."""
        with torch.no_grad():  # as torchmetrics itself updates
            found = _aligned(args, kwargs, self.class_dim, self._needs_pairs)
        if found is not None:
            self.metric.update(*found[0], **found[1])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Update the metric, and return its value for this batch; None without common positions."""
        found = _aligned(args, kwargs, self.class_dim, self._needs_pairs)
        self._forward_cache = None if found is None else self.metric(*found[0], **found[1])
        return self._forward_cache

    def compute(self) -> Any:
        """The metric's value, over all ranks."""
        return self.metric.compute()

    def reset(self) -> None:
        """Reset the metric."""
        self.metric.reset()
        self._forward_cache = None

    @property
    def update_called(self) -> bool:
        """Return whether the metric has seen a batch."""
        return bool(self.metric.update_called)

    @property
    def update_count(self) -> int:
        """Number of batches that the metric has seen, without skipped ones."""
        return int(self.metric.update_count)

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        return self.metric._filter_kwargs(**kwargs)  # type: ignore[no-any-return]

    def plot(self, *args: Any, **kwargs: Any) -> Any:
        """The metric's plot."""
        return self.metric.plot(*args, **kwargs)


class MaskedCollection(MetricCollection):  # type: ignore[misc]
    """A collection of torchmetrics on the common positions of all tensors, aligned once for all metrics."""

    _class_dim: int | None = None
    _needs_pairs: str | None = None

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update the metrics, unless there are no common positions."""
        with torch.no_grad():
            found = _aligned(args, kwargs, self._class_dim, self._needs_pairs)
        if found is not None:
            super().update(*found[0], **found[1])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Update the metrics, and return their values for this batch; None without common positions."""
        found = _aligned(args, kwargs, self._class_dim, self._needs_pairs)
        return None if found is None else super().forward(*found[0], **found[1])


def wrap_metric(metric: Any, class_dim: int | None) -> MaskedMetric:
    """Return ``metric`` with an ``update`` that aligns its arguments."""
    if isinstance(metric, MetricTracker):
        raise TypeError(
            f"{FUNCTION}: wrap the metric that is tracked: MetricTracker(mg.metrics.wrap(metric))"
        )
    _check(metric)
    return MaskedMetric(metric, class_dim)


def wrap_collection(collection: Any, class_dim: int | None) -> MaskedCollection:
    """Return the same collection in another class, with shared state."""
    _check(collection)
    wrapped = MaskedCollection.__new__(MaskedCollection)
    wrapped.__dict__ = collection.__dict__
    wrapped._class_dim, wrapped._needs_pairs = class_dim, _needs_pairs(collection)
    return wrapped


#: Domains of torchmetrics in which samples are images, signals, texts, …, and a metric: they read shapes.
SHAPED = (
    *("audio", "detection", "image", "multimodal", "segmentation", "shape", "text", "video"),
    "MultioutputWrapper",
)
#: Exceptions: means over pairs.
FLAT = ("PeakSignalNoiseRatio",)
#: Metrics that treat the columns (or positions) of a matrix as separate outputs (or parts of one answer).
READS_MATRICES = ("ExplainedVariance", "MulticlassExactMatch", "R2Score", "RelativeSquaredError")
COLUMNS = "wrap one metric for each column: metrics[i].update(prediction[:, i], target[:, i])"

#: Attributes of metrics that read samples or columns, or exchange in each step; a test of their value,
#: and the remedy.
READS = (
    ("num_outputs", lambda found: isinstance(found, int) and found > 1, COLUMNS),
    ("num_labels", lambda found: isinstance(found, int), COLUMNS),
    ("keep_sequence_dim", lambda found: found is not None, "omit keep_sequence_dim"),
    ("dim", lambda found: found is not None, "omit dim"),
    ("multidim_average", lambda found: found == "samplewise", "use 'global', or loop over samples"),
    ("dist_sync_on_step", bool, "omit it: the other ranks would wait for one that skips a step"),
)


def _check(metric: Any) -> None:
    """Refuse metrics that are silently wrong for flat tensors, or wait for ranks that skip steps."""
    for part in metric.modules():
        kind = type(part)
        if isinstance(part, CompositionalMetric):
            raise TypeError(
                f"{FUNCTION}: a metric computed from others is updated through these; wrap them, and compute "
                "with the wrapped ones: mg.metrics.wrap(a) + mg.metrics.wrap(b)"
            )
        package, _, domain = kind.__module__.partition(".")
        if package != "torchmetrics":
            continue
        if kind.__name__ in SHAPED or (domain.partition(".")[0] in SHAPED and kind.__name__ not in FLAT):
            raise ValueError(
                f"{FUNCTION}: {kind.__name__} reads whole samples, and aligned tensors are flat (K,); update it "
                "sample by sample with mg.align(prediction[i], target[i]), in the shape that it expects"
            )
        for name, reads, remedy in READS:
            found = getattr(part, name, None)
            if reads(found):
                raise ValueError(
                    f"{FUNCTION}: {kind.__name__} has {name}={found!r}, and aligned tensors are flat (K,), without "
                    f"samples or columns; {remedy}"
                )


def _needs_pairs(metric: Any) -> str | None:
    """Name of a contained metric that must not get flattened matrices."""
    names = (type(part).__name__ for part in metric.modules())
    return next((name for name in names if name in READS_MATRICES), None)


def _aligned(
    args: tuple[Any, ...], kwargs: dict[str, Any], class_dim: int | None, needs_pairs: str | None
) -> Arguments | None:
    found = aligned_arguments(args, kwargs, class_dim)
    if needs_pairs is None or found is None or found[0] is args:  # no common positions, or plain tensors only
        return found
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, (Tensor, MaskedTensor)) and x.ndim]
    rows = (given[1:2] or given)[0]  # labels, or the second of a pair
    if rows.ndim > 1 and rows.shape[0] != rows.numel():
        raise ValueError(
            f"{FUNCTION}: {needs_pairs} reads the columns of a matrix, found {tuple(rows.shape)}, and aligned tensors "
            f"are flat (K,); {COLUMNS}; or pass pairs: metric.update(*mg.align(prediction, target))"
        )
    return found
