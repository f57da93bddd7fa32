"""The first law for operations without a meaning on incomplete data: where nothing is missing, PyTorch's result."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.smallest import smallest
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries, stored_of
from maskgrad.masked_tensor.writing import write_result
from maskgrad.mode import PLAIN, mode

__all__ = ["MISSING", "of_complete"]

#: Returned where an entry is missing, or may be.
MISSING = object()


def of_complete(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """PyTorch's result of a call in which no entry is missing; else, or if masks cannot be read, :data:`MISSING`.

    Results are fully specified MaskedTensors; scalars are plain.
    """
    if mode() != "eager":
        return MISSING
    out = kwargs.get("out")
    kwargs = {name: value for name, value in kwargs.items() if name != "out"}
    masked: list[MaskedTensor] = []
    plain, named = _plain(args, masked), _plain(tuple(kwargs.values()), masked)
    if not all(map(_is_complete, masked)):
        return MISSING
    result = function(*plain, **dict(zip(kwargs, named, strict=True)))
    if out is None:
        return _specified(result)
    return write_result(out, result, function, False)


def _is_complete(x: MaskedTensor) -> bool:
    stored = stored_of(x)
    if stored is not None:
        return stored.values.numel() == math.prod(x.shape)
    mask = x._pattern.mask
    return type(mask) in PLAIN and not mask.is_meta and bool(smallest(mask).all())


def _plain(argument: Any, masked: list[MaskedTensor]) -> Any:
    """The values of a MaskedTensor, or of those in a sequence, which are appended to ``masked``."""
    if isinstance(argument, MaskedTensor):
        masked.append(argument)
        return argument._values if stored_of(argument) is None else argument._dense()[0]
    kind = type(argument)
    return kind([_plain(part, masked) for part in argument]) if kind in (list, tuple) else argument


def _specified(result: Any) -> Any:
    if isinstance(result, Tensor) and result.ndim:
        return of_entries(result, torch.ones((), dtype=torch.bool, device=result.device).expand(result.shape))
    if isinstance(result, (tuple, list)):
        return type(result)([_specified(part) for part in result])
    return result
