"""Checks of index tensors from outside: bounds, order, no duplicates."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maskgrad.patterns.boolean import BooleanPattern
from maskgrad.patterns.compressed import BY_ROW, CompressedPattern, lines_of
from maskgrad.patterns.jagged import JaggedPattern, jagged_pattern
from maskgrad.patterns.pattern import Pattern
from maskgrad.patterns.stored import CoordinatePattern, ravel_multi_index

__all__ = ["check_offsets", "check_pattern", "check_places"]


def _integers(index: Tensor, name: str) -> None:
    if index.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            f"{name} must have dtype torch.int64 or torch.int32, found {index.dtype}; use {name}.long()"
        )


def check_places(indices: Tensor, sizes: tuple[int, ...], name: str = "indices") -> None:
    """Raise IndexError if a coordinate lies outside its size, TypeError if it is not an integer."""
    _integers(indices, name)
    if indices.ndim != 2 or indices.shape[0] != len(sizes):
        raise ValueError(
            f"{name} must have shape ({len(sizes)}, n) for sizes {sizes}, found {tuple(indices.shape)}"
        )
    if not indices.shape[1]:
        return
    least, most = indices.amin(1), indices.amax(1)
    for dim, size in enumerate(sizes):
        low, high = int(least[dim]), int(most[dim])
        if low < 0 or high >= size:
            raise IndexError(
                f"{name} must lie between 0 and {size - 1} in dimension {dim}, found index {low if low < 0 else high}, "
                f"outside the table of size {size}"
            )


def check_pattern(pattern: Pattern, values: Tensor) -> None:
    """Raise an error if the tensors of a pattern contradict each other or the values."""
    if isinstance(pattern, BooleanPattern):
        return
    if any(t.layout != torch.strided for t in (values, *pattern.tensors())):
        raise TypeError("values and indices must be strided tensors")
    if isinstance(pattern, JaggedPattern):
        _check_sequences(pattern, values)
        return
    sizes = pattern.facts().sizes
    if min(sizes, default=0) < 0 or math.prod(sizes) >= 2**63:
        raise ValueError(f"sizes must be nonnegative integers whose product fits into int64, found {sizes}")
    devices = {t.device for t in (values, *pattern.tensors())}
    if len(devices) > 1:
        raise ValueError(f"values and indices must be on one device, found {sorted(map(str, devices))}")
    if isinstance(pattern, CoordinatePattern):
        _check_coordinates(pattern, values)
    elif isinstance(pattern, CompressedPattern):
        _check_lines(pattern, values)
    else:
        raise TypeError(
            f"{type(pattern).__name__} has no check for loading from files: add one in patterns/checks.py"
        )


def check_offsets(offsets: Tensor, number: int) -> None:
    """Raise an error unless ``offsets`` ascend from 0 to the number of rows."""
    _integers(offsets, "offsets")
    if offsets.ndim != 1 or not offsets.shape[0]:
        raise ValueError(
            f"offsets must have shape (B + 1,), the start of each sequence and the end of the last one, found "
            f"{tuple(offsets.shape)}; to get them from lengths: torch.nn.functional.pad(lengths.cumsum(0), (1, 0))"
        )
    first, last = int(offsets[0]), int(offsets[-1])
    falls = offsets.diff() < 0
    if first != 0 or last != number or bool(falls.any()):
        found = f"they begin with {first} and end with {last}"
        if bool(falls.any()):
            at = int(falls.nonzero()[0])
            found = f"they decrease from {int(offsets[at])} to {int(offsets[at + 1])} at sequence {at}"
        raise ValueError(f"offsets must ascend from 0 to the number of rows, {number}; {found}")


def _check_sequences(pattern: JaggedPattern, values: Tensor) -> None:
    offsets, index, frame, at = *pattern.tensors(), pattern.at
    rank = len(at) + values.ndim - 1
    if values.ndim < 1 or frame.dtype != torch.bool or len(at) not in (1, frame.ndim) or frame.ndim < 2:
        raise ValueError("a jagged tensor needs rows, and a Boolean frame of its batch and ragged dimensions")
    if len(set(at)) != len(at) or not all(0 <= place < rank for place in at):
        raise ValueError(
            f"batch and ragged dimensions must be at different positions below {rank}, found {at}"
        )
    check_offsets(offsets, values.shape[0])
    lengths = offsets.diff()
    if lengths.shape[0] != math.prod(frame.shape[:-1]):
        raise ValueError(f"a frame {tuple(frame.shape)} does not hold {lengths.shape[0]} sequences")
    if lengths.numel() and int(lengths.max()) > frame.shape[-1]:
        raise ValueError(f"a sequence has {int(lengths.max())} positions, the frame {frame.shape[-1]}")
    _integers(index, "index")
    expected = jagged_pattern(offsets, values.shape[0], tuple(frame.shape)).index
    if index.shape != expected.shape or not torch.equal(index, expected.to(index.dtype)):
        raise ValueError("index does not match the rows given by offsets")


def _check_coordinates(pattern: CoordinatePattern, values: Tensor) -> None:
    check_places(pattern.indices, pattern.sizes)
    if values.ndim < 1 or values.shape[0] != pattern.indices.shape[1]:
        raise ValueError(
            f"values must have one row for each of {pattern.indices.shape[1]} places, found shape {tuple(values.shape)}"
        )
    keys = ravel_multi_index(pattern.indices, pattern.sizes)
    if bool((keys[1:] <= keys[:-1]).any()):
        raise ValueError(
            "indices must be in row-major order without duplicates; use mg.sparse.coalesce first"
        )


def _check_lines(pattern: CompressedPattern, values: Tensor) -> None:
    pointers, positions, sizes = pattern.pointers, pattern.positions, pattern.sizes
    layout = pattern.layout
    _integers(pointers, "pointers")
    _integers(positions, "positions")
    height, width = pattern.blocksize or (1, 1)
    if len(sizes) < 2 or height < 1 or width < 1 or sizes[-2] % height or sizes[-1] % width:
        raise ValueError(f"layout {layout} with blocks of ({height}, {width}) does not fit sizes {sizes}")
    rows, columns = sizes[-2] // height, sizes[-1] // width
    lines, most = (rows, columns) if layout in BY_ROW else (columns, rows)
    number = positions.shape[-1] if positions.ndim else 0
    batch = sizes[:-2]
    if pointers.shape != (*batch, lines + 1) or positions.shape != (*batch, number):
        raise ValueError(
            f"pointers and positions of layout {layout} must have shapes {(*batch, lines + 1)} and {(*batch, 'n')}, "
            f"found {tuple(pointers.shape)} and {tuple(positions.shape)}"
        )
    if values.shape[: len(batch) + 1] != (*batch, number):
        raise ValueError(f"values must begin with shape {(*batch, number)}, found {tuple(values.shape)}")
    if pattern.blocksize and values.shape[len(batch) + 1 : len(batch) + 3] != (height, width):
        raise ValueError(f"values must have blocks of ({height}, {width}), found shape {tuple(values.shape)}")
    steps = pointers.diff(dim=-1)
    if bool((steps < 0).any() | (pointers[..., 0] != 0).any() | (pointers[..., -1] != number).any()):
        raise ValueError(
            f"pointers of layout {layout} must ascend from 0 to the number of stored positions, {number}"
        )
    if not positions.numel():
        return
    low, high = int(positions.min()), int(positions.max())
    if low < 0 or high >= most:
        raise IndexError(
            f"positions must lie between 0 and {most - 1}, found index {low if low < 0 else high}"
        )
    keys = lines_of(pointers, number) * most + positions  # int64 for any dtype of the positions
    if bool((keys[..., 1:] <= keys[..., :-1]).any()):
        raise ValueError(f"positions of layout {layout} must ascend strictly within each line")
