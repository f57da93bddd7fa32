"""The outcome of a call on masked operands, and its comparison with what an oracle says."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from maskgrad import MaskedTensor
from maskgrad.masked_tensor import dispatch, identity
from tests.laws.any_type.comparison import assert_close, parts_of

__all__ = ["NUMBER", "Outcome", "anomalies_raise", "assert_result", "filled", "plain_parts", "unread"]


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


#: In place of a mask, by identity: the result is a number, a plain tensor without dimensions.
NUMBER = torch.ones((), dtype=torch.bool)


def assert_result(
    result: Any,
    values: Any,
    masks: Sequence[Tensor | None],
    what: str,
    exact: bool = False,
    amplified: bool = False,
) -> None:
    """``result`` is made of MaskedTensors with these masks, and with these values at the specified entries.

    None in place of a mask says that the result is plain, NUMBER that it is a number.
    """
    if isinstance(values, (tuple, list)):
        assert type(result) is type(values), (
            f"{what}: the result is a {type(result).__name__}, torch's {type(values).__name__}"
        )
        assert len(result) == len(values), f"{what}: {len(result)} results instead of {len(values)}"
    for i, (part, value, mask) in enumerate(zip(parts_of(result), parts_of(values), masks, strict=True)):
        here = f"{what}, result {i}" if isinstance(values, (tuple, list)) else what
        if mask is None:
            assert type(part) is type(value), f"{here}: the result is a {type(part).__name__}"
            assert_close(torch.as_tensor(part), torch.as_tensor(value), here, exact=True)
            continue
        if mask is NUMBER:
            assert type(part) is Tensor, f"{here}: the result is a {type(part).__name__}, not a number"
            assert (part.shape, part.dtype) == ((), value.dtype), f"{here}: {part.dtype}, {tuple(part.shape)}"
            assert_close(part, value, f"{here}: the number", exact, amplified)
            continue
        assert isinstance(part, MaskedTensor), f"{here}: the result is a {type(part).__name__}"
        assert part.dtype == value.dtype, f"{here}: dtype {part.dtype} instead of {value.dtype}"
        assert part.shape == value.shape, f"{here}: shape {tuple(part.shape)} instead of {tuple(value.shape)}"
        assert part.mask.shape == mask.shape, f"{here}: mask of shape {tuple(part.mask.shape)}"
        wrong = part.mask != mask
        assert not wrong.any(), (
            f"{here}: the masks differ at {int(wrong.sum())} entries, first {wrong.nonzero()[:1].tolist()}"
        )
        assert_close(part.compressed(), value[mask], f"{here}: values", exact, amplified)
