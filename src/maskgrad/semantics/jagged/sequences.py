"""Reductions and softmax along the ragged dimension: over the rows of each sequence, which lie together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad import kernels
from maskgrad.patterns.eager import can_read_values
from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import HALVES, Entries
from maskgrad.semantics.jagged.features import ALONG, _without
from maskgrad.semantics.jagged.rows import Call, is_jagged
from maskgrad.semantics.sparse.entries import SparseEntries, densified, is_masked
from maskgrad.semantics.sparse.registry import BY_NAME

if TYPE_CHECKING:
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["ends", "over_sequences", "within_sequences"]


def _asked(call: Call) -> dict[str, Any] | None:
    """The arguments, if the ragged dimension and no other is meant."""
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
    """The rule for stored entries, along the last sparse dimension; which sequences are empty decides sizes."""
    if not can_read_values(x.values, *x.pattern.tensors()):
        return None
    pattern = x.pattern.canonical()
    options = given | {"dim": len(pattern.at) - 1}
    return BY_NAME[call.operation.name](call.function, (SparseEntries(x.values, pattern),), options)


def over_sequences(call: Call) -> Any:
    """A reduction of each sequence, by the rule for stored entries, which finds them in segments."""
    given = _asked(call)
    if given is None:
        return None
    if call.operation.name in ("sum", "mean") and set(given) <= {"input", "dim", "keepdim", "dtype"}:
        found = _totals(call.operation.name == "mean", **given)
        if found is not None:
            return found
    x, keepdim = given.pop("input"), given.pop("keepdim", False)
    result = _by_stored(call, x, given)
    return None if result is None else _placed(result, x.pattern.at, keepdim)


#: Values from which the compiled loop, which adds in double precision, is faster than PyTorch's ``index_add``.
LARGE = 262_144


def _totals(average: bool, input: Jagged, dim: Any, keepdim: bool = False, dtype: Any = None) -> Any:
    """``sum`` and ``mean`` of each sequence: of an empty one, too, whose total is not specified; in graphs as well."""
    x = input
    values = x.values if dtype is None else x.values.to(dtype)
    if not (values.is_floating_point() and values.ndim and values.dtype.itemsize > 1):
        return None
    pattern = x.pattern
    sequences = pattern.frame.shape[:-1]
    wide = values.float() if values.dtype in HALVES else values
    if torch.compiler.is_compiling() or values.numel() < LARGE:
        added = wide.new_zeros((pattern.offsets.shape[0] - 1, *wide.shape[1:]))
        added = added.index_add(0, pattern.sequences(), wide)
    else:
        added = kernels.segment_sum(values, pattern.offsets, None)
    trailing = (1,) * (values.ndim - 1)
    if average:
        counts = pattern.remembered(
            ("counts", added.dtype), lambda: pattern.lengths().clamp(min=1).to(added.dtype)
        )
        added = added / counts.reshape(-1, *trailing)
    some = pattern.remembered("some", lambda: pattern.lengths() > 0)
    added = added.to(values.dtype).reshape(*sequences, *values.shape[1:])
    result = Entries(added, some.reshape(*sequences, *trailing).expand(added.shape))
    return _placed(result, pattern.at, keepdim)


def _placed(result: Any, at: tuple[int, ...], keepdim: Any) -> Any:
    """Batch dimensions, which come first, where they stood, and a dimension of size 1 if the ragged one is kept."""
    if isinstance(result, tuple) and not isinstance(result, Entries):
        parts = [_placed(part, at, keepdim) for part in result]
        return tuple(parts) if type(result) is tuple else type(result)(parts)
    entries = densified(result) if isinstance(result, SparseEntries) else result
    rest = _without(at[:-1], at[-1:])
    order = tuple(range(len(rest)))
    parts = list(entries) if rest == order else [part.movedim(order, rest) for part in entries]
    return Entries(*[part.unsqueeze(at[-1]) for part in parts] if keepdim else parts)


def within_sequences(call: Call) -> Any:
    """What keeps the rows of each sequence and looks at all of them: softmax."""
    given = _asked(call)
    if given is None:
        return None
    x = given.pop("input")
    result = _by_stored(call, x, given)
    return None if result is None else SparseEntries(result.values, x.pattern)


def ends(pattern: JaggedPattern, last: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first or last row of each sequence, and which sequences have one: (*batch,) each."""
    lengths = pattern.lengths()
    rows = pattern.offsets[1:] - 1 if last else pattern.offsets[:-1]
    some = lengths > 0
    shape = pattern.frame.shape[:-1]
    return torch.where(some, rows, 0).reshape(shape), some.reshape(shape)
