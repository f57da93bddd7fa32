"""Metrics for plain tensors, applied to the common positions of predictions and targets."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from torch import Tensor

from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.metrics.alignment import align, aligned

__all__ = ["Arguments", "Wrapped", "aligned_arguments", "wrap"]

FUNCTION = "mg.metrics.wrap"

#: Package of a metric's class, the module that wraps it, and its function; the first match is used.
KINDS = (
    ("torchmetrics", "Metric", "maskgrad.metrics.of_torchmetrics", "wrap_metric"),
    ("torchmetrics", "MetricCollection", "maskgrad.metrics.of_torchmetrics", "wrap_collection"),
    ("torchmetrics", "MetricTracker", "maskgrad.metrics.of_torchmetrics", "wrap_metric"),
    ("ignite.metrics", "Metric", "maskgrad.metrics.of_ignite", "wrap_metric"),
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Wrapped:
    """A metric whose ``update`` takes MaskedTensors; made by :func:`wrap`.

    Attributes:
        metric: the wrapped metric.
    """

    def __init__(self, metric: Any, class_dim: int | None = None) -> None:
        self.metric, self.class_dim = metric, class_dim

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Update the metric on the common positions of all tensors, if any."""
        found = aligned_arguments(args, kwargs, self.class_dim)
        return None if found is None else self.metric.update(*found[0], **found[1])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the metric on the common positions of all tensors; None if there are none."""
        found = aligned_arguments(args, kwargs, self.class_dim)
        return None if found is None else self.metric(*found[0], **found[1])

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """The metric's value."""
        return self.metric.compute(*args, **kwargs)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Reset the metric."""
        return self.metric.reset(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{FUNCTION}({self.metric!r})"


def wrap(metric: Any, *, class_dim: int | None = None) -> Any:
    """Make a metric of another library accept MaskedTensors: it gets the positions where all are specified.

    The result is that of the metric for plain tensors of those entries (deletion). Weights of batches are
    right, too, because a metric counts these entries only. A batch without common positions is skipped.

    Args:
        metric: an object with ``update`` and ``compute``: of ``torchmetrics`` (a collection, too), of ``ignite``, or of
            your own. Its ``update`` takes flat tensors (K,), and scores (K, C) with labels (K,).
        class_dim: class dimension of scores, as in :func:`maskgrad.align`.

    Returns:
        A metric that shares its state with ``metric``: of ``torchmetrics``, ``ignite``, or a :class:`Wrapped`. Plain
        tensors only are passed on unchanged. For a skipped batch ``forward`` returns None.

    Raises:
        TypeError: ``metric`` has no ``update`` or ``compute``, or is computed from others: wrap these.
        ValueError: the metric reads columns or samples, which flat tensors do not have (``num_outputs``,
            ``num_labels``, ``multidim_average="samplewise"``), or exchanges in each step, where ranks may skip.

    Dense equivalent: ``metric.update(*mg.align(prediction, target))`` for each batch.

    Example:
        >>> class MeanAbsoluteError:
        ...     def __init__(self):
        ...         self.total, self.count = 0.0, 0
        ...     def update(self, prediction, target):
        ...         self.total += (prediction - target).abs().sum().item()
        ...         self.count += len(target)
        ...     def compute(self):
        ...         return self.total / self.count
        >>> metric = mg.metrics.wrap(MeanAbsoluteError())
        >>> metric.update(torch.tensor([1., 2., 3.]), mg.from_nan(torch.tensor([2., float("nan"), 6.])))
        >>> metric.compute()
        2.0
    """
    if isinstance(metric, type):
        raise TypeError(
            f"{FUNCTION}: metric must be an object, found the class {metric.__name__}; use "
            f"mg.metrics.wrap({metric.__name__}(...))"
        )
    for method in ("update", "compute"):
        if not callable(getattr(metric, method, None)):
            raise TypeError(
                f"{FUNCTION}: metric must have update and compute, found {type(metric).__name__} without {method}; "
                "for a function of two tensors use mg.align: function(*mg.align(prediction, target))"
            )
    for package, name, module, function in KINDS:
        # No metric belongs to a package that is not imported.
        kind = getattr(sys.modules.get(package), name, None)
        if kind is not None and isinstance(metric, kind):
            return getattr(importlib.import_module(module), function)(metric, class_dim)
    return Wrapped(metric, class_dim)


def aligned_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], class_dim: int | None
) -> Arguments | None:
    """The arguments of ``update``, with all tensors aligned; None if they have no common positions."""
    if not kwargs and len(args) == 2 and all(map(_is_tensor, args)):  # the usual case
        if not any(isinstance(x, MaskedTensor) for x in args):
            return args, kwargs
        pair = align(*args, class_dim=class_dim)
        return (pair, kwargs) if pair[0].shape[0] else None
    given = [*args, *kwargs.values()]
    if not any(type(x) is MaskedTensor for x in given) and not any(map(_holds_masked, given)):
        return args, kwargs
    places = [place for place, x in enumerate(given) if _is_tensor(x)]
    for place, x in enumerate(given):
        if place not in places:
            _refuse_data(x)
    found = _align([given[place] for place in places], class_dim)
    if not found[0].shape[0]:
        return None
    for place, x in zip(places, found, strict=True):
        given[place] = x
    return tuple(given[: len(args)]), dict(zip(kwargs, given[len(args) :], strict=True))


def _align(tensors: list[Any], class_dim: int | None) -> tuple[Tensor, ...]:
    if len(tensors) == 1:
        return aligned((tensors[0],), None)
    return align(*tensors, class_dim=class_dim)


def _is_tensor(x: Any) -> bool:
    """Return whether something has entries with positions; scalars do not."""
    return isinstance(x, MaskedTensor) or (isinstance(x, Tensor) and x.ndim > 0)


def _holds_masked(x: Any) -> bool:
    if isinstance(x, dict):
        return any(map(_holds_masked, x.values()))
    return isinstance(x, MaskedTensor) or (isinstance(x, (list, tuple)) and any(map(_holds_masked, x)))


def _refuse_data(x: Any) -> None:
    """Refuse arrays and lists, whose entries would be paired wrongly."""
    if isinstance(x, (str, bytes, Tensor)) or not hasattr(x, "__len__"):
        return
    raise TypeError(
        f"{FUNCTION}: with a MaskedTensor, all arguments with entries must be tensors, found {type(x).__name__}; "
        "use torch.as_tensor, or mg.align and update the metric yourself"
    )
