"""Equality of whole tensors, of which at least one is stored: the same pattern, and the same entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.patterns.stored import keys_of
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import functions_named
from maskgrad.semantics.signatures import bound
from maskgrad.semantics.stored.entries import Stored, exploded, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RULES"]


def _in_order(x: Any) -> tuple[Tensor, Tensor]:
    """Row-major numbers of the specified places, ascending, and their entries."""
    if isinstance(x, Stored):
        coordinates, entries, sizes = exploded(x)
        keys, order = torch.sort(keys_of(coordinates, sizes))
        return keys, entries[order]
    if isinstance(x, Entries):
        keys = x.mask.reshape(-1).nonzero().squeeze(1)
        return keys, x.values.reshape(-1)[keys]
    return torch.arange(x.numel(), device=x.device), x.reshape(-1)


def equal(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """``torch.equal`` and ``torch.allclose``: patterns are compared exactly, however they are stored."""
    arguments = bound("input other rtol atol equal_nan", args, kwargs)
    a, b = arguments.pop("input"), arguments.pop("other")
    if shape_of(a) != shape_of(b):
        if function in functions_named("equal")[0]:
            return False
        raise RuntimeError(
            f"allclose: shapes must be equal, found {tuple(shape_of(a))} and {tuple(shape_of(b))}"
        )
    (places, entries), (others, partners) = _in_order(a), _in_order(b)
    return torch.equal(places, others) and bool(function(entries, partners, **arguments))


RULES: dict[str, Callable[..., Any]] = {"equal": equal, "allclose": equal}
