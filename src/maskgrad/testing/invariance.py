"""Assertions that a step does not depend on padding, on garbage in it, or on how its batch is split."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from maskgrad.doctor import Report, examine
from maskgrad.errors import ExaminationError

__all__ = [
    "assert_accumulation_invariant", "assert_causal", "assert_documents_apart", "assert_garbage_invariant",
    "assert_padding_invariant", "assert_ranks_invariant",
]  # fmt: skip


def assert_padding_invariant(
    step: Callable[[Any], Any], batch: Any, *, padding: Mapping[Any, Any] | None = None,
    model: nn.Module | None = None,
) -> None:  # fmt: skip
    """Assert that values and amount of padding change neither loss nor gradients.

    Args:
        step: function of the batch that returns the loss.
        batch: dict, tuple, list, dataclass or tensor.
        padding: for each key a mask (True = real) or the key of one; None: detected.
        model: for the names of parameters in the message.

    Raises:
        AssertionError: with the findings, each with its line and its remedy.
        ExaminationError: the step cannot be examined, or no padding is known.

    Example:
        >>> import torch, maskgrad as mg
        >>> w = torch.nn.Parameter(torch.ones(()))
        >>> batch = {"x": torch.ones(2, 3), "mask": torch.tensor([[True, True, False], [True, False, False]])}
        >>> mg.testing.assert_padding_invariant(lambda b: w * mg.masked(b["x"], b["mask"]).mean(), batch)
    """
    kinds = ("padding-leak", "padding-length")
    _none_found(examine(step, batch, padding=padding, model=model, experiments=kinds), "padding-leak")


def assert_garbage_invariant(
    step: Callable[[Any], Any], batch: Any, *, padding: Mapping[Any, Any] | None = None,
    model: nn.Module | None = None,
) -> None:  # fmt: skip
    """Assert that ordinary and large values, NaN and infinity in the padding change neither loss nor gradients.

    The arguments are those of :func:`assert_padding_invariant`. NaN is always tried, although a program whose
    padding never contains one needs no protection: zero times NaN is NaN.

    Raises:
        AssertionError: with the findings, each with its line and its remedy.
        ExaminationError: the step cannot be examined, or no padding is known.

    Example:
        >>> import torch, maskgrad as mg
        >>> w = torch.nn.Parameter(torch.ones(()))
        >>> batch = {"x": torch.ones(2, 3), "mask": torch.tensor([[True, True, False], [True, False, False]])}
        >>> mg.testing.assert_garbage_invariant(lambda b: w * mg.masked(b["x"], b["mask"]).mean(), batch)
    """
    kinds = ("padding-leak", "nan-under-mask")
    _none_found(examine(step, batch, padding=padding, model=model, experiments=kinds), "padding-leak")


def assert_documents_apart(
    step: Callable[[Any], Any], batch: Any, *, documents: Any = None, model: nn.Module | None = None
) -> None:
    """Assert that documents packed into one row do not affect each other, and count as they do separately.

    Args:
        step: function of the batch that returns the loss.
        batch: dict, tuple, list, dataclass or tensor, with labels that can be ignored (-100, a weight of 0).
        documents: the document of each token, as in :func:`maskgrad.doctor.examine`; None: recognised by usual names.
        model: for the names of parameters in the message.

    Raises:
        AssertionError: with the findings, each with its line and its remedy.
        ExaminationError: the step cannot be examined, or no documents are known.

    Example:
        >>> import torch, maskgrad as mg
        >>> table = torch.nn.Embedding(9, 9)
        >>> batch = {"ids": torch.tensor([[1, 2, 3, 4]]), "seq_idx": torch.tensor([[0, 0, 1, 1]]),
        ...          "labels": torch.tensor([[2, -100, 4, -100]])}
        >>> def step(b):
        ...     return torch.nn.functional.cross_entropy(table(b["ids"]).mT, b["labels"])
        >>> mg.testing.assert_documents_apart(step, batch)
    """
    kinds = ("document-leak", "document-alone")
    _none_found(examine(step, batch, documents=documents, model=model, experiments=kinds), "document-leak")


def assert_causal(
    step: Callable[[Any], Any], batch: Any, *, padding: Mapping[Any, Any] | None = None,
    documents: Any = None, model: nn.Module | None = None,
) -> None:  # fmt: skip
    """Assert that later positions of a sequence do not affect earlier ones.

    The arguments are those of :func:`maskgrad.doctor.examine`.

    Raises:
        AssertionError: with the findings, each with its line and its remedy.
        ExaminationError: the step cannot be examined, or its labels cannot be ignored.

    Example:
        >>> import torch, maskgrad as mg
        >>> table = torch.nn.Embedding(9, 9)
        >>> batch = {"ids": torch.tensor([[1, 2, 3, 4]]), "labels": torch.tensor([[2, 3, 4, 5]])}
        >>> def step(b):
        ...     return torch.nn.functional.cross_entropy(table(b["ids"]).cumsum(1).mT, b["labels"])
        >>> mg.testing.assert_causal(step, batch)
    """
    options: dict[str, Any] = {"padding": padding, "documents": documents, "model": model}
    _none_found(examine(step, batch, causal=True, experiments=(), **options), "future-leak")


def _none_found(report: Report, *experiments: str) -> None:
    """Assert that nothing was found, and that experiments ran: skipped ones prove nothing."""
    if report.findings:
        raise AssertionError(str(report))
    tried = {experiment.name for experiment in report.experiments}
    left_out = [str(skipped) for skipped in report.skipped if skipped.experiment in experiments]
    left_out += [str(note) for note in report.notes if note.about in experiments]
    if not tried.intersection(experiments) or ({"denominator", "ranks"} & {*experiments} and left_out):
        why = "; ".join(left_out) or "no experiment applies to the batch"
        raise ExaminationError(
            f"step: nothing can be asserted ({why}); pass a step and a batch that can be examined"
        )
    for note in left_out:
        warnings.warn(note, UserWarning, stacklevel=3)


def assert_accumulation_invariant(
    step: Callable[..., Any], batch: Any, *, model: nn.Module | None = None
) -> None:
    """Assert that the parts into which a step splits its batch change neither loss nor gradients.

    The step passes parts to its model one at a time, as a training loop that accumulates gradients. It is run on the
    samples in other orders, so that its parts have different numbers of tokens. A mean of the parts' means changes:
    divide by the tokens of the whole batch.

    Args:
        step: function of the batch that returns the loss.
        batch: dict, tuple, list, dataclass or tensor; its samples lie along the first dimension.
        model: for the names of parameters in the message.

    Raises:
        AssertionError: with the finding.
        ExaminationError: the step cannot be examined or does not split its batch, or its samples are all alike.

    Example:
        >>> import torch, maskgrad as mg
        >>> layer = torch.nn.Linear(1, 1)
        >>> def step(x):
        ...     return sum(layer(part).square().sum() / len(x) for part in x.split(2))
        >>> mg.testing.assert_accumulation_invariant(step, torch.tensor([[1.0], [2.0], [5.0]]))
    """
    report = examine(step, batch, model=model, experiments=("denominator",))
    _none_found(report, "denominator", "order")


def assert_ranks_invariant(
    step: Callable[[Any], Any], batch: Any, *, ranks: int = 4, model: nn.Module | None = None
) -> None:
    """Assert that the average of the gradients of several ranks is the gradient of one rank on the whole batch.

    Args:
        step: function of the batch that returns the loss, or calls ``backward`` itself.
        batch: dict, tuple, list, dataclass or tensor; its samples lie along the first dimension.
        ranks: how many ranks are simulated, in this process.
        model: for the names of parameters in the message.

    Raises:
        AssertionError: with the finding.
        ExaminationError: ranks cannot be tried with the step or the batch.

    Example:
        >>> import torch, maskgrad as mg
        >>> layer = torch.nn.Linear(1, 1)
        >>> mg.testing.assert_ranks_invariant(lambda x: layer(x).square().mean(), torch.randn(8, 1))
    """
    _none_found(examine(step, batch, ranks=ranks, model=model, experiments=()), "ranks")
