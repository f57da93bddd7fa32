"""Reductions and softmax along the ragged dimension: over the rows of each sequence, which lie together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad import kernels
from maskgrad.patterns.eager import can_read_values
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import HALVES, Entries
from maskgrad.semantics.jagged.features import ALONG, _without
from maskgrad.semantics.jagged.rows import is_jagged
from maskgrad.semantics.signatures import bound
from maskgrad.semantics.sparse.entries import SparseEntries, densified, is_masked

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskgrad.patterns.jagged import JaggedPattern
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["ends", "over_sequences", "totals", "within_sequences"]


def _asked(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments, if the ragged dimension and no other is meant."""
    signature, default, _ = ALONG[name]
    given = bound(signature, args, kwargs)
    x, dim = given["input"], given.get("dim", default)
    if not is_jagged(x) or x.pattern.is_flat or dim is None or isinstance(dim, (bool, torch.Tensor)):
        return None
    if any(is_masked(v) for k, v in given.items() if k != "input"):
        return None
    if as_dims(dim, len(x.shape)) != x.pattern.at[-1:] or (not isinstance(dim, int) and not len(dim)):
        return None
    return given


def _is_eager(x: Jagged) -> bool:
    """Whether numbers may be looked at: which sequences are empty decides sizes."""
    return can_read_values(x.values, *x.pattern.tensors())


def _canonical(x: Jagged) -> SparseEntries:
    """The same rows with batch and ragged dimension in front."""
    return SparseEntries(x.values, x.pattern.moved(tuple(range(len(x.pattern.at)))))


def over_sequences(name: str, rule: Callable[..., Any], fallback: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction of each sequence, by the rule for stored entries, which finds them in segments."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = _asked(name, args, kwargs)
        if given is None or not _is_eager(given["input"]):
            return fallback(function, args, kwargs)
        x, keepdim = given.pop("input"), given.pop("keepdim", False)
        at = x.pattern.at
        given["dim"] = len(at) - 1
        result = rule(function, (_canonical(x),), given)
        rest = _without(at[:-1], at[-1:])
        return _placed(result, rest, at[-1] if keepdim else None)

    return body


#: Values from which the compiled loop, which adds in double precision, is faster than PyTorch's ``index_add``.
LARGE = 262_144


def totals(name: str, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """``sum`` and ``mean`` of each sequence: of an empty one, too, whose total is not specified; in graphs as well."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = _asked(name, args, kwargs)
        if given is None or not set(given) <= {"input", "dim", "keepdim", "dtype"}:
            return fallback(function, args, kwargs)
        x, dtype = given["input"], given.get("dtype")
        values = x.values if dtype is None else x.values.to(dtype)
        if not (values.is_floating_point() and values.ndim and values.dtype.itemsize > 1):
            return fallback(function, args, kwargs)
        pattern, at = x.pattern, x.pattern.at
        sequences = pattern.frame.shape[:-1]
        wide = values.float() if values.dtype in HALVES else values
        if torch.compiler.is_compiling() or values.numel() < LARGE:
            added = wide.new_zeros((pattern.offsets.shape[0] - 1, *wide.shape[1:]))
            added = added.index_add(0, pattern.sequences(), wide)
        else:
            added = kernels.segment_sum(values, pattern.offsets, None)
        trailing = (1,) * (values.ndim - 1)
        if name == "mean":
            counts = pattern.remembered(
                ("counts", added.dtype), lambda: pattern.lengths().clamp(min=1).to(added.dtype)
            )
            added = added / counts.reshape(-1, *trailing)
        some = pattern.remembered("some", lambda: pattern.lengths() > 0)
        added = added.to(values.dtype).reshape(*sequences, *values.shape[1:])
        result = Entries(added, some.reshape(*sequences, *trailing).expand(added.shape))
        return _placed(result, _without(at[:-1], at[-1:]), at[-1] if given.get("keepdim") else None)

    return body


def _placed(result: Any, at: tuple[int, ...], kept: int | None) -> Any:
    """Batch dimensions, which come first, at their places, and a dimension of size 1 where one is to be kept."""
    if isinstance(result, tuple) and not isinstance(result, Entries):
        parts = [_placed(part, at, kept) for part in result]
        return tuple(parts) if type(result) is tuple else type(result)(parts)
    entries = densified(result) if isinstance(result, SparseEntries) else result
    order = tuple(range(len(at)))
    parts = list(entries) if at == order else [part.movedim(order, at) for part in entries]
    if kept is not None:
        parts = [part.unsqueeze(kept) for part in parts]
    return Entries(*parts)


def within_sequences(name: str, rule: Callable[..., Any], fallback: Callable[..., Any]) -> Callable[..., Any]:
    """What keeps the rows of each sequence and looks at all of them: softmax."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = _asked(name, args, kwargs)
        if given is None or not _is_eager(given["input"]):
            return fallback(function, args, kwargs)
        x = given.pop("input")
        given["dim"] = len(x.pattern.at) - 1
        return SparseEntries(rule(function, (_canonical(x),), given).values, x.pattern)

    return body


def ends(pattern: JaggedPattern, last: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first or last row of each sequence, and which sequences have one: (*batch,) each."""
    lengths = pattern.lengths()
    rows = pattern.offsets[1:] - 1 if last else pattern.offsets[:-1]
    some = lengths > 0
    shape = pattern.frame.shape[:-1]
    return torch.where(some, rows, 0).reshape(shape), some.reshape(shape)
