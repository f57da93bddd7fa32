"""Equality of whole tensors: the same pattern, and the same specified entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.semantics.entries import mask_of, values_of
from maskgrad.semantics.facts import functions_named, record
from maskgrad.semantics.signatures import bound

if TYPE_CHECKING:
    from collections.abc import Callable


def equal(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """``torch.equal`` and ``torch.allclose``; unspecified entries are compared as equal, patterns exactly."""
    arguments = bound("input other rtol atol equal_nan", args, kwargs)
    a, b = arguments.pop("input"), arguments.pop("other")
    pattern_a, pattern_b = mask_of(a), mask_of(b)
    values = [values_of(a), values_of(b)]
    if function in functions_named("equal")[0] and values[0].shape != values[1].shape:
        return False
    pattern_a, pattern_b = torch.broadcast_tensors(pattern_a, pattern_b)
    if not torch.equal(pattern_a, pattern_b):
        return False
    safe = [torch.where(pattern_a, v, 1 if v.dtype != torch.bool else True) for v in values]
    return bool(function(*safe, **arguments))


OPERATIONS = tuple(
    record(name, "equality", equal, "a plain bool; the patterns are compared too")
    for name in ("equal", "allclose")
)
