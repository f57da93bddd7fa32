"""Joins of jagged batches: along features, and of sequences; ``where``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.patterns.eager import can_read_values
from maskgrad.patterns.jagged import JaggedPattern, same_lengths
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.jagged.rows import aligned, check_frames, feature_dims, is_jagged, of_lengths
from maskgrad.semantics.signatures import bound, paired
from maskgrad.semantics.sparse.entries import SparseEntries

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["cat", "stack", "where"]


def _together(parts: Any) -> bool:
    """Whether all parts are jagged, of the same lengths and at the same places."""
    if not parts or not all(is_jagged(part) for part in parts):
        return False
    first = parts[0]
    return all(
        part.pattern.at == first.pattern.at
        and part.pattern.frame.shape == first.pattern.frame.shape
        and len(part.shape) == len(first.shape)
        and same_lengths(first.pattern, part.pattern)
        for part in parts[1:]
    )


def cat(fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Along features, if all have the same lengths; along the one batch dimension always."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound("tensors dim", args, kwargs)
        parts, dim = given["tensors"], given.get("dim", 0)
        if not all(is_jagged(part) for part in parts):
            return fallback(function, args, kwargs)
        first = parts[0]
        dim = as_dim(dim, len(first.shape))
        features = feature_dims(first)
        if dim in features:
            if not _together(parts):
                return fallback(function, args, kwargs)
            return SparseEntries(torch.cat([p.values for p in parts], features.index(dim) + 1), first.pattern)
        patterns = [part.pattern for part in parts]
        fits = len(first.pattern.at) == 2 and dim == first.pattern.at[0]
        if not fits or any(p.at != first.pattern.at or p.longest != first.pattern.longest for p in patterns):
            return fallback(function, args, kwargs)
        if not all(can_read_values(p.offsets) for p in patterns):
            return fallback(function, args, kwargs)
        size = sum(p.frame.shape[0] for p in patterns)
        frame = first.pattern.frame.new_ones(()).expand(size, first.pattern.longest)
        model = JaggedPattern(first.pattern.offsets, first.pattern.index, frame, first.pattern.at)
        whole = of_lengths(torch.cat([p.lengths() for p in patterns]), model)
        return SparseEntries(torch.cat([part.values for part in parts]), whole)

    return body


def stack(fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Parts of the same lengths become a dimension of features."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound("tensors dim", args, kwargs)
        parts, dim = given["tensors"], given.get("dim", 0)
        if not _together(parts):
            return fallback(function, args, kwargs)
        first = parts[0]
        dim = as_dim(dim, len(first.shape) + 1)
        before = len([d for d in feature_dims(first) if d < dim])
        at = tuple([place + (place >= dim) for place in first.pattern.at])
        return SparseEntries(torch.stack([p.values for p in parts], before + 1), first.pattern.moved(at))

    return body


def where(fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Between sides of which both are jagged, or by a jagged condition: nothing else is specified behind the ends."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = (
            ("input", "condition", "other") if function is Tensor.where else ("condition", "input", "other")
        )
        given = paired(names, args) | {{"self": "input"}.get(k, k): v for k, v in kwargs.items()}
        if len(given) < 3:
            return fallback(function, args, kwargs)
        condition, a, b = (given[n] for n in ("condition", "input", "other"))
        masked = [o for o in (condition, a, b) if is_jagged(o)]
        for other in masked[1:]:
            if other.pattern.at == masked[0].pattern.at and len(other.shape) == len(masked[0].shape):
                check_frames(masked[0].pattern, other.pattern)
        fits = is_jagged(condition) or (is_jagged(a) and is_jagged(b))
        # of two lengths, the longer side counts as far as it is chosen
        if not fits or not all(same_lengths(masked[0].pattern, o.pattern) for o in masked[1:]):
            return fallback(function, args, kwargs)
        found = aligned([condition, a, b])
        if found is None or any(isinstance(o, Entries) for o in found.operands):
            return fallback(function, args, kwargs)
        return SparseEntries(torch.where(*found.operands), found.pattern)

    return body
