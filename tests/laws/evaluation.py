"""Running a call on masked operands: results, and the gradients that random cotangents send back."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from maskgrad import MaskedTensor
from tests.laws.comparison import parts_of

__all__ = ["Outcome", "anomalies_raise", "attempt", "cotangents_for", "filled", "gradients", "plain_parts"]


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


def cotangents_for(values: Any, masks: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Random gradients for the differentiable results, zero where unspecified; the same in every run."""
    generator = torch.Generator().manual_seed(1)
    found: list[Tensor | None] = []
    for part, mask in zip(parts_of(values), masks, strict=True):
        if mask is None or not part.requires_grad:
            found.append(None)
            continue
        noise = torch.randn(part.shape, generator=generator, dtype=torch.float64)
        if part.is_complex():
            noise = torch.complex(noise, torch.randn(part.shape, generator=generator, dtype=torch.float64))
        found.append(torch.where(mask, noise.to(part.dtype), 0))
    return found


def gradients(
    parts: Sequence[Tensor], leaves: Sequence[Tensor], cotangents: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradient of each leaf; None for those that take no part."""
    pairs = [
        (part, cotangent) for part, cotangent in zip(parts, cotangents, strict=True) if cotangent is not None
    ]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not pairs or not wanted:
        return [None] * len(leaves)
    found = iter(torch.autograd.grad([p for p, _ in pairs], wanted, [c for _, c in pairs], allow_unused=True))
    return [dense(next(found)) if leaf.requires_grad else None for leaf in leaves]


def dense(gradient: Tensor | None) -> Tensor | None:
    """Embeddings can send sparse gradients."""
    return gradient if gradient is None or gradient.layout == torch.strided else gradient.to_dense()


def attempt(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result, or the exception."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return error


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
