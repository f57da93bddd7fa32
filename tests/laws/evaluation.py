"""The outcome of a call on masked operands."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from maskgrad import MaskedTensor
from maskgrad.masked_tensor import dispatch, identity
from tests.laws.any_type.comparison import parts_of

__all__ = ["Outcome", "anomalies_raise", "filled", "plain_parts", "unread"]


class Outcome(NamedTuple):
    """A result, its specified values as plain tensors, and the gradient of each leaf."""

    result: Any
    plain: list[Tensor]
    grads: list[Tensor | None]


def plain_parts(result: Any) -> list[Tensor]:
    """The results with zeros where unspecified."""
    return [
        filled(part) if isinstance(part, MaskedTensor) else torch.as_tensor(part) for part in parts_of(result)
    ]


def filled(part: MaskedTensor) -> Tensor:
    """Zeros of the tensor's own dtype where unspecified."""
    return part.filled(torch.zeros((), dtype=part.dtype))


@contextlib.contextmanager
def anomalies_raise(enabled: bool) -> Iterator[None]:
    """torch's anomaly mode: a NaN that arises in the backward pass raises, even if it is hidden afterwards.

    The mode keeps the whole formatted stack for each node of the graph, which costs twice what a law does; the function
    that the error names, and the case that the laws name, say as much.
    """
    if not enabled:
        yield
        return
    no_stacks = mock.patch("torch.fx.traceback.format_stack", list, create=True)
    with warnings.catch_warnings(), no_stacks:
        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled", UserWarning)
        with torch.autograd.detect_anomaly(check_nan=True):
            yield


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """Masks count as unknown, as in a graph: what has no meaning on incomplete data is always refused."""
    with mock.patch.object(dispatch, "of_complete", return_value=identity.MISSING):
        yield
