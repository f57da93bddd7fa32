"""A step must not depend on padding, on garbage in it, or on how its batch is split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from maskgrad.doctor import Report, examine

__all__ = ["assert_accumulation_invariant", "assert_garbage_invariant", "assert_padding_invariant"]


def assert_padding_invariant(
    step: Callable[[Any], Any],
    batch: Any,
    *,
    padding: Mapping[Any, Any] | None = None,
    model: nn.Module | None = None,
) -> None:
    """Assert that neither what lies in the padding nor how much there is of it changes loss and gradients.

    Args:
        step: function of the batch that returns the loss.
        batch: dict, tuple, list, dataclass or tensor.
        padding: for each key a mask (True = real) or the key of one; found out if None.
        model: whose parameters are named in the message.

    Raises:
        AssertionError: with the findings, each with its line and its remedy.
        ExaminationError: the step cannot be examined, or no padding is known.

    Example:
        >>> import torch, maskgrad as mg
        >>> w = torch.nn.Parameter(torch.ones(()))
        >>> batch = {"x": torch.ones(2, 3), "mask": torch.tensor([[True, True, False], [True, False, False]])}
        >>> mg.testing.assert_padding_invariant(lambda b: w * mg.masked(b["x"], b["mask"]).mean(), batch)
    """
    report = examine(
        step,
        batch,
        padding=padding,
        model=model,
        experiments=("padding-leak", "padding-length"),
        required=True,
    )
    _none_found(report)


def assert_garbage_invariant(
    step: Callable[[Any], Any],
    batch: Any,
    *,
    padding: Mapping[Any, Any] | None = None,
    model: nn.Module | None = None,
) -> None:
    """Assert that numbers, large numbers, NaN and infinity in the padding change neither loss nor gradients.

    The arguments are those of :func:`assert_padding_invariant`. NaN is asked for here in any padding, although a
    program whose padding never holds one is right without: zero times NaN is NaN.

    Raises:
        AssertionError: with the findings, each with its line and its remedy.
        ExaminationError: the step cannot be examined, or no padding is known.

    Example:
        >>> import torch, maskgrad as mg
        >>> w = torch.nn.Parameter(torch.ones(()))
        >>> batch = {"x": torch.ones(2, 3), "mask": torch.tensor([[True, True, False], [True, False, False]])}
        >>> mg.testing.assert_garbage_invariant(lambda b: w * mg.masked(b["x"], b["mask"]).mean(), batch)
    """
    report = examine(
        step,
        batch,
        padding=padding,
        model=model,
        experiments=("padding-leak", "nan-under-mask"),
        required=True,
    )
    _none_found(report)


def _none_found(report: Report) -> None:
    if not report.ok:
        raise AssertionError(str(report))


def assert_accumulation_invariant(
    step: Callable[[Any], Any],
    batch: Any,
    *,
    parts: Any = None,
    model: nn.Module | None = None,
) -> None:
    """Assert that splitting the batch into parts changes neither loss nor gradients.

    Args:
        step: function of the batch that returns the loss.
        batch: dict, tuple, list, dataclass or tensor; it is split along the first dimension.
        parts: how the batch is split; see :func:`maskgrad.doctor.examine`.
        model: whose parameters are named in the message.

    Raises:
        AssertionError: with the finding.
        ExaminationError: the step cannot be examined, or the batch cannot be split so.
    """
    _none_found(examine(step, batch, model=model, experiments=("denominator",), parts=parts, required=True))
