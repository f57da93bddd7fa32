"""Reductions and softmax along the ragged dimension: over the rows of each sequence, which are contiguous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad import kernels
from maskgrad.kernels.segments import Rows
from maskgrad.mode import TRACED, can_read, mode
from maskgrad.patterns.boolean import BooleanPattern
from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import HALVES, Entries
from maskgrad.semantics.jagged.features import ALONG, _without, degrees_of
from maskgrad.semantics.jagged.operators import are_wanted, sum_along_sequences
from maskgrad.semantics.jagged.rows import Call, in_frame, is_jagged, out_of_frame
from maskgrad.semantics.stored.entries import StoredEntries, is_masked
from maskgrad.semantics.stored.registry import BY_NAME

if TYPE_CHECKING:
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["each_sequence", "ends", "over_sequences", "totals", "within_sequences"]


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
    x, keepdim, result = given.pop("input"), given.pop("keepdim", False), None
    if call.operation.name in ("sum", "mean") and set(given) <= {"dim", "dtype"}:
        dtype = given.get("dtype")
        values = x.values if dtype is None else x.values.to(dtype)
        result = totals(values, x.pattern, call.operation.name == "mean")
    result = _placed(result or _by_stored(call, x, given), x.pattern.at, keepdim)
    if (
        not keepdim
        or type(result) is not Entries
        or (call.operation.name in ("var", "std") and degrees_of(given))
    ):
        return result
    # a value for each sequence with a row: beside these rows it needs no mask
    return StoredEntries(result.values, BooleanPattern(result.mask).of_sequences([x.pattern]))  # type: ignore[arg-type]


#: Number of values from which the compiled loop, which adds in float64, is faster than PyTorch's ``index_add``.
LARGE = 262_144


def totals(values: torch.Tensor, pattern: JaggedPattern, average: bool = False) -> Entries | None:
    """Sums or means of the rows of each sequence, (*batch, *features); None if other rules apply."""
    if not (values.is_floating_point() and values.ndim and values.dtype.itemsize > 1):
        return None
    sequences = pattern.frame.shape[:-1]
    wide = values.float() if values.dtype in HALVES else values
    if mode() in TRACED or values.numel() < LARGE:
        added = wide.new_zeros((pattern.offsets.shape[0] - 1, *wide.shape[1:]))
        added = added.index_add(0, pattern.sequences(), wide)
    else:
        added = kernels.segment_sum(values, Rows(pattern.offsets, None, len(values)))
    trailing = (1,) * (values.ndim - 1)
    if average:
        counts = pattern.remembered(
            ("counts", added.dtype), lambda: pattern.lengths().clamp(min=1).to(added.dtype)
        )
        added = added / counts.reshape(-1, *trailing)
    some = pattern.lengths() > 0  # not cached: the user may write to the mask of a result
    added = added.to(values.dtype).reshape(*sequences, *values.shape[1:])
    return Entries(added, some.reshape(*sequences, *trailing).expand(added.shape))


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


def each_sequence(call: Call) -> Any:
    """Apply PyTorch's function to the rows of each sequence in turn: running sums, sorting."""
    given = _asked(call)
    if given is None:
        return None
    x, rest, named = call.first()
    if not can_read(x.pattern.offsets):
        if call.operation.name != "cumsum" or set(given) != {"input", "dim"} or not are_wanted(x.values):
            return None
        return StoredEntries(sum_along_sequences(x.values, x.pattern.offsets), x.pattern)
    at = x.pattern.at
    lengths = x.pattern.lengths().tolist()
    parts = [part for part, n in zip(x.values.split(lengths), lengths, strict=True) if n] or [x.values]
    found = [call.function(in_frame(part, at), *rest, **named) for part in parts]

    def joined(results: Any) -> StoredEntries:
        return StoredEntries(torch.cat([out_of_frame(part, at) for part in results]), x.pattern)

    return (
        joined(found)
        if isinstance(found[0], torch.Tensor)
        else type(found[0])([joined(part) for part in zip(*found, strict=True)])
    )


def ends(pattern: JaggedPattern, last: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first or last row of each sequence, and which sequences are not empty: (*batch,) each."""
    lengths = pattern.lengths()
    rows = pattern.offsets[1:] - 1 if last else pattern.offsets[:-1]
    some = lengths > 0
    shape = pattern.frame.shape[:-1]
    return torch.where(some, rows, 0).reshape(shape), some.reshape(shape)
