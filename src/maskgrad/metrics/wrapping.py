"""Metrics that know plain tensors only, fed with what predictions and targets both have."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from torch import Tensor

from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.metrics.alignment import align, aligned

__all__ = ["Arguments", "Wrapped", "aligned_arguments", "wrap"]

FUNCTION = "mg.metrics.wrap"

#: The package whose class a metric has, the module that wraps it, and which of its functions does; first fit wins.
KINDS = (
    ("torchmetrics", "Metric", "maskgrad.metrics.of_torchmetrics", "wrap_metric"),
    ("torchmetrics", "MetricCollection", "maskgrad.metrics.of_torchmetrics", "wrap_collection"),
    ("torchmetrics", "MetricTracker", "maskgrad.metrics.of_torchmetrics", "wrap_metric"),
    ("ignite.metrics", "Metric", "maskgrad.metrics.of_ignite", "wrap_metric"),
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Wrapped:
    """A metric whose ``update`` takes MaskedTensors; :func:`wrap` makes it.

    Attributes:
        metric: what was wrapped.
    """

    def __init__(self, metric: Any, class_dim: int | None = None) -> None:
        self.metric, self.class_dim = metric, class_dim

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Update the metric with what all tensors have in common; nothing is done if that is nothing."""
        found = aligned_arguments(args, kwargs, self.class_dim)
        return None if found is None else self.metric.update(*found[0], **found[1])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the metric with what all tensors have in common; None if that is nothing."""
        found = aligned_arguments(args, kwargs, self.class_dim)
        return None if found is None else self.metric(*found[0], **found[1])

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """What the metric computes."""
        return self.metric.compute(*args, **kwargs)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Reset the metric."""
        return self.metric.reset(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{FUNCTION}({self.metric!r})"


def wrap(metric: Any, *, class_dim: int | None = None) -> Any:
    """A metric of another library that takes MaskedTensors: it sees the places where all tensors are specified.

    The truth is deletion: the metric gives what it gives for plain tensors of those entries. Weights of batches are
    right by that, too, because a metric counts the entries it sees. A batch with nothing in common is skipped.

    Args:
        metric: an object with ``update`` and ``compute``: of ``torchmetrics`` (a collection, too), of ``ignite``, or of
            your own. Its ``update`` takes flat tensors (K,), and scores (K, C) with labels (K,).
        class_dim: where the classes of scores are, as in :func:`maskgrad.align`.

    Returns:
        A metric that shares its state with ``metric``: of ``torchmetrics``, ``ignite``, or a :class:`Wrapped`. Plain
        tensors alone are handed on as they are. For a skipped batch ``forward`` returns None.

    Raises:
        TypeError: ``metric`` has no ``update`` or ``compute``, or is one that is made of others: wrap these.
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
            f"{FUNCTION}: metric must be an object, found the class {metric.__name__}; write "
            f"mg.metrics.wrap({metric.__name__}(...))"
        )
    for method in ("update", "compute"):
        if not callable(getattr(metric, method, None)):
            raise TypeError(
                f"{FUNCTION}: metric must have update and compute, found {type(metric).__name__} without {method}; a "
                "function of two tensors takes mg.align: function(*mg.align(prediction, target))"
            )
    for package, name, module, function in KINDS:
        # A metric of a package that nobody has imported is none of its.
        kind = getattr(sys.modules.get(package), name, None)
        if kind is not None and isinstance(metric, kind):
            return getattr(importlib.import_module(module), function)(metric, class_dim)
    return Wrapped(metric, class_dim)


def aligned_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], class_dim: int | None
) -> Arguments | None:
    """The arguments of ``update``, all tensors among them aligned; None if they have nothing in common."""
    if not kwargs and len(args) == 2 and all(map(_is_tensor, args)):  # as most often
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
    """Whether something has entries that belong to places; a single number does not."""
    return isinstance(x, MaskedTensor) or (isinstance(x, Tensor) and x.ndim > 0)


def _holds_masked(x: Any) -> bool:
    if isinstance(x, dict):
        return any(map(_holds_masked, x.values()))
    return isinstance(x, MaskedTensor) or (isinstance(x, (list, tuple)) and any(map(_holds_masked, x)))


def _refuse_data(x: Any) -> None:
    """Arrays and lists have entries, too, and would be paired with others than their own."""
    if isinstance(x, (str, bytes, Tensor)) or not hasattr(x, "__len__"):
        return
    raise TypeError(
        f"{FUNCTION}: beside a MaskedTensor everything that has entries must be a tensor, found {type(x).__name__}; "
        "use torch.as_tensor, or mg.align and update the metric yourself"
    )
