"""Viewing strided tensors of any shape as a table of two flat counters, cut into tiles.

A reduction over any dimensions has a counter over the *kept* entries and one over the *reduced* ones. Neighbouring
dimensions that can be traversed with one stride are merged first (:mod:`maskgrad.kernels.layout`); the rest of each
group is a *walk*: a flat counter that is converted to a memory offset by division, digit by digit, so that nothing is
copied and broadcast (stride 0) masks are never expanded. A program handles a tile of the table; consecutive threads lie
along the counter that is contiguous in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled, index_type, launch, power_of_two
from maskgrad.kernels.layout import Axis, axes

ENTRIES = 2048  # of a tile: 16 for each of the 128 threads of a program
WIDEST = 1024  # along the counter without gaps
LINE = 128  # neighbouring entries for efficient memory access where the other counter must advance, too
PROGRAMS = 512  # enough for a large GPU; constant, so that results do not depend on the device


class Walk(NamedTuple):
    """One flat counter over some axes: ``sizes``, fastest first, and a stride for each in each tensor."""

    number: int
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


class Tile(NamedTuple):
    """Entries along both counters, and the number ``pieces`` of length ``piece`` along the second."""

    kept: int
    reduced: int
    pieces: int
    piece: int


class Table(NamedTuple):
    """Kept and reduced entries; ``order`` of the dimensions in memory; the rest as given."""

    kept: Walk
    reduced: Walk
    tile: Tile
    order: list[int]
    shape: torch.Size
    dims: list[int]
    whole: bool


def walk(merged: Sequence[Axis], tensors: int) -> Walk:
    """Make a counter over the axes ``merged``, slowest first."""
    fastest_first = [*reversed(merged)] or [Axis(1, False, (0,) * tensors)]
    return Walk(
        math.prod(axis.size for axis in fastest_first),
        tuple(axis.size for axis in fastest_first),
        tuple(tuple(axis.strides[i] for axis in fastest_first) for i in range(tensors)),
    )


def table(tensors: Sequence[Tensor], dim: Sequence[int], whole: bool = False) -> Table:
    """Make the table of a reduction of ``tensors`` (all of one shape) over ``dim``; the first decides the order.

    ``whole`` keeps the reduced counter in one piece, for results that cannot be merged from pieces.
    """
    shape = tensors[0].shape
    dims = sorted({d % len(shape) for d in dim}) if len(shape) else []
    merged, order = axes(tensors[0].shape, [x.stride() for x in tensors], dims)
    kept = walk([axis for axis in merged if not axis.reduced], len(tensors))
    reduced = walk([axis for axis in merged if axis.reduced], len(tensors))
    along = not merged or merged[-1].reduced
    return Table(kept, reduced, _tile(kept.number, reduced.number, along, whole), order, shape, dims, whole)


def _tile(kept: int, reduced: int, along: bool, whole: bool) -> Tile:
    """``along``: the reduced counter is the one without gaps."""
    if along:
        side = power_of_two(reduced, WIDEST)
        other = power_of_two(kept, ENTRIES // side)
    else:
        other = power_of_two(kept, LINE)
        side = power_of_two(reduced, ENTRIES // other)
    pieces = 1
    if not whole:
        pieces = min(-(-PROGRAMS * other // kept), -(-reduced // (8 * side)))
    piece = -(-reduced // (pieces * side)) * side
    return Tile(other, side, -(-reduced // piece), piece)


def entrywise(kernel: Any, out: Tensor, *tensors: Tensor, **constants: Any) -> None:
    """Run ``kernel`` on tiles of ``out`` and ``tensors`` (all of one shape): for entrywise operations.

    Its arguments are the tensors; number, sizes and strides of the outer counter; the same for the inner one, which is
    the innermost axis; and the number of tiles along it.
    """
    if not out.numel():
        return
    every = (out, *tensors)
    rows, inner, tall, side, pieces = cut(*every)
    launch(
        kernel, -(-rows.number // tall) * pieces, *every, rows.number, rows.sizes, *rows.strides, inner.number,
        inner.sizes, *inner.strides, pieces, INDEX=index_type(*every), TALL=tall, WIDE=side, **constants,
    )  # fmt: skip


def cut(*every: Tensor) -> tuple[Walk, Walk, int, int, int]:
    """Return the outer and the inner counter of tensors of one shape, the sides of a tile, and the number of tiles."""
    merged, _ = axes(every[0].shape, [x.stride() for x in every], ())
    rows, inner = walk(merged[:-1], len(every)), walk(merged[-1:], len(every))
    side = power_of_two(inner.number, WIDEST)
    tall = power_of_two(rows.number, ENTRIES // side)
    return rows, inner, tall, side, -(-inner.number // side)


def reduction(
    kernel: Any, view: Table, tensors: Sequence[Tensor], results: Sequence[Tensor], **constants: Any
) -> None:
    """Run ``kernel`` on the tiles of ``view``, the table of ``tensors``; ``results`` are not part of it.

    Its arguments are these; number, sizes and, tensor by tensor, strides of the kept counter; the same of the reduced
    one; the length of a piece and the number of pieces, unless all is ``whole``.
    """
    kept, reduced, tile = view.kept, view.reduced, view.tile
    pieces = () if view.whole else (tile.piece, tile.pieces)
    launch(
        kernel, -(-kept.number // tile.kept) * tile.pieces, *tensors, *results, kept.number, kept.sizes, *kept.strides,
        reduced.number, reduced.sizes, *reduced.strides, *pieces, INDEX=index_type(*tensors), KEPT=tile.kept,
        REDUCED=tile.reduced, **constants,
    )  # fmt: skip


def restored(x: Tensor, view: Table, keepdim: bool) -> Tensor:
    """Reshape the results ``x`` (flat, in the order of the kept counter) to the shape of the reduction."""
    kept = [d for d in view.order if d not in view.dims]
    back = [kept.index(d) for d in sorted(kept)]
    final = [1 if d in view.dims else n for d, n in enumerate(view.shape) if keepdim or d not in view.dims]
    return x.view([view.shape[d] for d in kept]).permute(back).reshape(final).contiguous()


@compiled
def place(i: tl.tensor, sizes: tl.tensor, strides: tl.tensor, TENSOR: tl.constexpr = 0) -> tl.tensor:
    """Memory offsets of the entries with counter ``i``; ``strides`` holds those of several tensors in sequence.

    Not tuples of tuples, in which Triton 3.5 loses the ones.
    """
    offset = i * 0
    first: tl.constexpr = TENSOR * len(sizes)
    for axis in tl.static_range(len(sizes) - 1):
        offset += i % sizes[axis] * strides[first + axis]
        i = i // sizes[axis]
    return offset + i * strides[first + len(sizes) - 1]


@compiled
def tile(
    rows: tl.tensor, length: tl.tensor, pieces: tl.tensor, INDEX: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """The rows and columns of this program's tile, as counters, and which of its entries are inside the table."""
    program = tl.program_id(0).to(INDEX)
    row = program // pieces * TALL + tl.arange(0, TALL)
    column = program % pieces * WIDE + tl.arange(0, WIDE)
    return row, column, (row < rows)[:, None] & (column < length)[None, :]


@compiled
def tile_place(
    row: tl.tensor, row_sizes: tl.tensor, row_strides: tl.tensor, column: tl.tensor, sizes: tl.tensor,
    strides: tl.tensor, TENSOR: tl.constexpr = 0,
) -> tl.tensor:  # fmt: skip
    """Memory offsets of the entries of a tile for one operand."""
    return (
        place(row, row_sizes, row_strides, TENSOR)[:, None] + place(column, sizes, strides, TENSOR)[None, :]
    )
