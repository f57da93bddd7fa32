"""Rearrangements of entries, by place and never by multiplication: what lies under a mask may be NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["BODIES", "diagonal", "diagonal_places"]


def diagonal_places(rows: Any, columns: Any, offset: int, device: torch.device) -> Tensor:
    """Where the entries of a diagonal are in a matrix of this size, read row by row."""
    first_row, first_column = max(-offset, 0), max(offset, 0)
    length = _smaller(rows - first_row, columns - first_column)
    places: Tensor = torch.arange(length, device=device) * (columns + 1) + (
        first_row * columns + first_column
    )
    return places


def _smaller(a: Any, b: Any) -> Any:
    """The smaller of two sizes, of which either may be known in a run only; never below 0."""
    if isinstance(a, int) and isinstance(b, int):
        return max(min(a, b), 0)
    return torch.sym_max(torch.sym_min(a, b), 0)


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The exporter multiplies by an identity matrix, whose zeros do not remove NaN."""
    moved = x.movedim((dim1, dim2), (-2, -1))
    places = diagonal_places(moved.shape[-2], moved.shape[-1], offset, x.device)
    return moved.reshape(*moved.shape[:-2], -1 if x.numel() else 0).index_select(-1, places)


def linalg_diagonal(a: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Of the last two dimensions."""
    return diagonal(a, offset, dim1, dim2)


def diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The entries of a diagonal replaced."""
    moved = x.movedim((dim1, dim2), (-2, -1))
    places = diagonal_places(moved.shape[-2], moved.shape[-1], offset, x.device)
    flat = moved.flatten(-2)
    written = flat.scatter(-1, places.expand(src.shape), src.to(x.dtype))
    return written.reshape(moved.shape).movedim((-2, -1), (dim1, dim2))


def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    """In three steps, which exist for every dtype."""
    *batch, channels, height, width = x.shape
    r = upscale_factor
    cells = x.reshape(*batch, channels // (r * r), r, r, height, width)
    n = len(batch)
    moved = cells.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return moved.reshape(*batch, channels // (r * r), height * r, width * r)


def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    """The inverse."""
    *batch, channels, height, width = x.shape
    r = downscale_factor
    cells = x.reshape(*batch, channels, height // r, r, width // r, r)
    n = len(batch)
    moved = cells.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return moved.reshape(*batch, channels * r * r, height // r, width // r)


def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Any:
    """Position i as often as ``repeats[i]``; how many there are in all must be known."""
    if output_size is None:
        return NotImplemented
    ends = torch.cumsum(repeats.to(torch.int64), 0)
    return (ends[None, :] <= torch.arange(output_size, device=repeats.device)[:, None]).sum(1)


def copied(view: Any) -> Any:
    """A view with memory of its own, which in a graph of values is the same."""

    def body(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = view(x, *args, **kwargs)
        return result.clone() if isinstance(result, Tensor) else [part.clone() for part in result]

    return body


def as_strided(x: Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None) -> Any:
    """Entries by their place in the storage, which is in order for a tensor that fills it row by row."""
    if not x.is_contiguous() or x.storage_offset() != 0:
        return NotImplemented
    places = torch.zeros((), dtype=torch.int64, device=x.device) + (storage_offset or 0)
    for at, (length, step) in enumerate(zip(size, stride, strict=True)):
        steps = torch.arange(length, device=x.device) * step
        places = places + steps.reshape(-1, *[1] * (len(size) - at - 1))
    return x.flatten().index_select(0, places.flatten()).reshape(tuple(size))


aten = torch.ops.aten

BODIES = {
    "diagonal diagonal_copy": diagonal,
    "linalg_diagonal": linalg_diagonal,
    "diagonal_scatter": diagonal_scatter,
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_unshuffle,
    "repeat_interleave.Tensor": repeat_interleave,
    "select_copy.int": copied(aten.select.int),
    "slice_copy.Tensor": copied(aten.slice.Tensor),
    "detach_copy": copied(aten.detach.default),
    "as_strided": as_strided,
}
