"""Reductions and softmax along the ragged dimension: over the rows of each sequence, which are contiguous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.mode import can_read
from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.jagged.features import ALONG, _without
from maskgrad.semantics.jagged.rows import Call, is_jagged
from maskgrad.semantics.stored.entries import StoredEntries, is_masked
from maskgrad.semantics.stored.registry import BY_NAME

if TYPE_CHECKING:
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["ends", "over_sequences", "within_sequences"]


def _asked(call: Call) -> dict[str, Any] | None:
    """The arguments, if ``dim`` is the ragged dimension only."""
    signature, default, _ = ALONG[call.operation.name]
    given = call.bound(signature)
    x, dim = given["input"], given.get("dim", default)
    if not is_jagged(x) or x.pattern.is_flat or dim is None or isinstance(dim, (bool, torch.Tensor)):
        return None
    if any(is_masked(v) for k, v in given.items() if k != "input"):
        return None
    if as_dims(dim, len(x.shape)) != x.pattern.at[-1:] or (not isinstance(dim, int) and not len(dim)):
        return None
    return given


def _by_stored(call: Call, x: Jagged, given: dict[str, Any]) -> Any:
    """The rule for stored entries, along the last sparse dimension."""
    pattern = x.pattern.canonical()
    options = given | {"dim": len(pattern.at) - 1}
    return BY_NAME[call.operation.name](call.function, (StoredEntries(x.values, pattern),), options)


def over_sequences(call: Call) -> Any:
    """A reduction of each sequence, by the rule for stored entries, which finds them in segments."""
    given = _asked(call)
    if given is None or (call.operation.name == "prod" and not can_read(given["input"].values)):
        return None
    x, keepdim = given.pop("input"), given.pop("keepdim", False)
    return _placed(_by_stored(call, x, given), x.pattern.at, keepdim)


def _placed(result: Any, at: tuple[int, ...], keepdim: Any) -> Any:
    """Move the leading batch dimensions back, and add a dimension of size 1 if the ragged one is kept."""
    if isinstance(result, tuple) and not isinstance(result, Entries):
        parts = [_placed(part, at, keepdim) for part in result]
        return tuple(parts) if type(result) is tuple else type(result)(parts)
    rest = _without(at[:-1], at[-1:])
    order = tuple(range(len(rest)))
    parts = list(result) if rest == order else [part.movedim(order, rest) for part in result]
    return Entries(*[part.unsqueeze(at[-1]) for part in parts] if keepdim else parts)


def within_sequences(call: Call) -> Any:
    """The rule for functions that normalise the rows of each sequence: softmax, and division by a norm."""
    given = _asked(call)
    if given is None:
        return None
    x = given.pop("input")
    return StoredEntries(_by_stored(call, x, given).values, x.pattern)


def ends(pattern: JaggedPattern, last: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first or last row of each sequence, and which sequences are not empty: (*batch,) each."""
    lengths = pattern.lengths()
    rows = pattern.offsets[1:] - 1 if last else pattern.offsets[:-1]
    some = lengths > 0
    shape = pattern.frame.shape[:-1]
    return torch.where(some, rows, 0).reshape(shape), some.reshape(shape)
