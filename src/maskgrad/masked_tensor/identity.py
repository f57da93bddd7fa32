"""The first law for operations without a meaning on incomplete data: where nothing is missing, PyTorch's result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor

from maskgrad.kernels.smallest import smallest
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries, stored_of
from maskgrad.masked_tensor.writing import write_result
from maskgrad.mode import PLAIN, TRACED, mode

__all__ = ["MISSING", "of_complete"]

#: Returned where an entry is missing, or may be.
MISSING = object()


def of_complete(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """PyTorch's result of a call in which no entry is missing; else, or if masks cannot be read, :data:`MISSING`.

    Results are fully specified MaskedTensors; scalars are plain.
    """
    if mode() in TRACED:
        return MISSING
    out = kwargs.get("out")
    kwargs = {name: value for name, value in kwargs.items() if name != "out"}
    if not all(_is_complete(x) for x in _masked((*args, *kwargs.values()))):
        return MISSING
    result = function(*_plain(args), **{name: _plain(value) for name, value in kwargs.items()})
    if out is None:
        return _specified(result)
    return write_result(out, result, function, False)


def _masked(arguments: Any) -> Iterator[MaskedTensor]:
    for argument in arguments:
        if isinstance(argument, MaskedTensor):
            yield argument
        elif type(argument) in (list, tuple):
            yield from _masked(argument)


def _is_complete(x: MaskedTensor) -> bool:
    stored = stored_of(x)
    if stored is not None:
        return stored.values.numel() == math.prod(x.shape)
    mask = x._pattern.mask
    return _can_read(mask) and bool(smallest(mask).all())


def _can_read(mask: Tensor) -> bool:
    """Return whether a mask has values, on any device: it is not traced, and not one of many under ``torch.vmap``."""
    while is_functorch_wrapped_tensor(mask):
        if is_batchedtensor(mask):
            return False
        mask = get_unwrapped(mask)
    traced = (
        torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) or torch._C._get_tracing_state()
    )
    return type(mask) in PLAIN and not mask.is_meta and traced is None


def _plain(argument: Any) -> Any:
    if isinstance(argument, MaskedTensor):
        return argument._values if stored_of(argument) is None else argument._dense()[0]
    return (
        type(argument)([_plain(part) for part in argument]) if type(argument) in (list, tuple) else argument
    )


def _specified(result: Any) -> Any:
    if isinstance(result, Tensor) and result.ndim:
        return of_entries(result, torch.ones((), dtype=torch.bool, device=result.device).expand(result.shape))
    if isinstance(result, (tuple, list)):
        return type(result)([_specified(part) for part in result])
    return result
