"""Putting stored tensors together: their entries move to their places in the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.stored.elementwise import same_pattern
from maskgrad.semantics.stored.entries import Stored, flat, from_places
from maskgrad.semantics.stored.views import reshape, unsqueeze

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RULES"]


def _all_stored(tensors: Sequence[Any]) -> list[Stored]:
    if not all(isinstance(t, Stored) for t in tensors):
        layout = next((t.pattern.layout for t in tensors if isinstance(t, Stored)), torch.sparse_coo)
        raise UnsupportedLayoutError("joining sparse and dense tensors", layout)
    return list(tensors)


def cat(tensors: Sequence[Any], dim: int = 0) -> Stored:
    """Put stored tensors one behind the other."""
    parts = _all_stored(tensors)
    at = as_dim(dim, len(parts[0].shape))
    shapes = [[s for d, s in enumerate(part.shape) if d != at] for part in parts]
    if any(shape != shapes[0] for shape in shapes):
        raise RuntimeError(
            f"cat: sizes must match except in dimension {at}, found {[tuple(p.shape) for p in parts]}"
        )
    sparse = len(parts[0].sizes)
    divided_alike = all(len(part.sizes) == sparse for part in parts)
    if divided_alike and at >= sparse and same_pattern(parts):
        entries = torch.cat([part.entries for part in parts], at - sparse + 1)
        return Stored(parts[0].pattern.gathered(entries), parts[0].pattern)
    if not divided_alike or at >= sparse:
        parts = [flat(part) for part in parts]
    moved, offset = [], 0
    for part in parts:
        shifted = part.pattern.coordinates().clone()
        shifted[at] += offset
        offset += part.sizes[at]
        moved.append(shifted)
    sizes = (*parts[0].sizes[:at], offset, *parts[0].sizes[at + 1 :])
    entries = torch.cat([part.entries for part in parts])
    return from_places(torch.cat(moved, 1), entries, sizes, parts[0].pattern)


def stack(tensors: Sequence[Any], dim: int = 0) -> Stored:
    """Join along a new dimension."""
    return cat([unsqueeze(t, dim) for t in _all_stored(tensors)], dim)


def hstack(tensors: Sequence[Any]) -> Stored:
    """Side by side."""
    return cat(tensors, 0 if len(_all_stored(tensors)[0].shape) == 1 else 1)


def vstack(tensors: Sequence[Any]) -> Stored:
    """One below the other."""
    return cat([unsqueeze(t, 0) if len(t.shape) == 1 else t for t in _all_stored(tensors)], 0)


def column_stack(tensors: Sequence[Any]) -> Stored:
    """Side by side, vectors as columns."""
    parts = [reshape(t, (t.shape[0], 1)) if len(t.shape) == 1 else t for t in _all_stored(tensors)]
    return cat(parts, 1)


RULES: dict[str, Callable[..., Any]] = {
    "cat": cat,
    "stack": stack,
    "hstack": hstack,
    "vstack": vstack,
    "column_stack": column_stack,
}
