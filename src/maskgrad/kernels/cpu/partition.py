"""Cutting reductions, and passes that broadcast their results back, into tasks.

A task is one piece of the reduced axis, of one row, or of one tile of columns (see ``layout.py``). The loops
all receive the same: ``outer`` (sizes of the outer axes and the strides of each tensor along them), the
reduced axis (its ``steps`` and ``length``), the number of ``pieces`` and the length of a ``piece``, and the kept inner
axis (its ``width``, 1 for rows, and ``inners``, its strides). Cuts depend on shapes alone, never on the number of
threads.

A cut is kept for the next tensors of the same shape, strides and dimensions: making one takes 12 us, as long as a loop
takes for 20,000 entries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import at, compiled, flat
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.threads import LIGHT, SERIAL, run
from maskgrad.kernels.layout import Axis, axes, nest, unrepeated

PIECE = 16384  # entries of a long row that make one task
MIN_TASKS = 32
MANY_ROWS = 8192  # from this number on, narrow rows are joined
WIDE = 256  # maximum length of joined rows
NARROW = 12  # maximum length of rows that are copied into columns
KEPT = 1024  # cuts, of some 2 KiB each

Strides = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Partition:
    """The cut of tensors of one shape for a reduction.

    Attributes:
        shape: the common shape.
        dims: the reduced ones, in ascending order.
        order: the dimensions in memory order.
        outer: see the top of this file, also for ``summed`` and ``inner``.
        joined: how many narrow rows make one of ``inner``, where columns are reduced: see :func:`_widened`.
        pieces: their number along the summed axis.
        tile: number of columns of a task.
        copied: which tensors must be copied into the order of the first before they can be traversed with it.
    """

    shape: torch.Size
    dims: tuple[int, ...]
    order: list[int]
    outer: list[Axis]
    summed: Axis
    inner: Axis | None
    joined: int
    pieces: int
    tile: int
    copied: tuple[bool, ...]

    @cached_property
    def rows(self) -> int:
        """Number of combinations of outer indices."""
        return math.prod(axis.size for axis in self.outer)

    @cached_property
    def width(self) -> int:
        """Number of columns; 1 for rows."""
        return self.inner.size if self.inner else 1

    @cached_property
    def results(self) -> int:
        """Number of results that the loops write: one for each piece of each row or column."""
        return self.rows * self.pieces * self.width

    @cached_property
    def tasks(self) -> int:
        """Number of tasks."""
        return self.rows * self.pieces * -(-self.width // self.tile)

    @cached_property
    def whole(self) -> bool:
        """Return whether each result of the loops is one result of the reduction; otherwise several must be merged."""
        return self.pieces == self.joined == 1 and not any(axis.reduced for axis in self.outer)

    @cached_property
    def geometry(self) -> tuple[Any, ...]:
        """The arguments ``outer, steps, length, pieces, piece, width, inners`` of a loop."""
        number = len(self.copied)
        return (
            _table(self.outer, number), self.summed.strides, self.summed.size, self.pieces,
            _piece(self.summed, self.pieces), self.width, self.inner.strides if self.inner else (0,) * number,
        )  # fmt: skip

    def split(self, results: Tensor) -> tuple[Tensor, list[int]]:
        """The loops' results with a dimension for each axis left, and which of these are to be merged."""
        left = [*self.outer, Axis(self.pieces, True, ()), Axis(self.joined, True, ())]
        sizes = [*(axis.size for axis in left), self.width // self.joined]
        return results.view(sizes), [i for i, axis in enumerate(left) if axis.reduced]

    @cached_property
    def _kept(self) -> list[int]:
        return [d for d in self.order if d not in self.dims]

    @cached_property
    def _back(self) -> list[int] | None:
        """Permutation of the kept dimensions among the merged results; None: in order."""
        found = [self._kept.index(d) for d in sorted(self._kept)]
        return None if found == sorted(found) else found

    @cached_property
    def _final(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape of the reduction without and with ``keepdim``."""
        every = tuple([1 if d in self.dims else n for d, n in enumerate(self.shape)])
        return tuple([n for d, n in enumerate(every) if d not in self.dims]), every

    @cached_property
    def is_direct(self) -> bool:
        """Return whether the results of the loops are those of the reduction, in its order."""
        return self.whole and self._back is None

    def empty(self, dtype: torch.dtype, keepdim: bool = False) -> Tensor:
        """Memory for the results of the loops, in the shape of the reduction if no results need merging."""
        return empty(self._final[keepdim] if self.is_direct else self.results, dtype)

    def placed(self, merged: Tensor, keepdim: bool) -> Tensor:
        """The merged results as the reduction returns them: kept dimensions in their order."""
        final = self._final[keepdim]
        if self._back is None:
            return merged if merged.shape == final else merged.view(final)
        return (
            merged.view([self.shape[d] for d in self._kept]).permute(self._back).reshape(final).contiguous()
        )


def walkable(values: Tensor) -> Tensor:
    """``values``, copied unless its entries are distinct and its innermost ones neighbours."""
    if values.is_contiguous():
        return values
    strides = [stride for size, stride in zip(values.shape, values.stride(), strict=True) if size > 1]
    return values if not strides or min(strides) == 1 else values.contiguous()


def standing(values: Tensor, mask: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    """``values`` (:func:`walkable`) and mask; rows of up to ``NARROW`` entries, reduced one by one, as columns.

    A loop over four values fills no vector. Copied, they are four rows of 100,000 columns: variance of 100,000 x 4
    along dim 1 5.1 ms, as columns 1.0, of which the copies take 0.2.
    """
    last = values.ndim - 1
    few = last > 0 and 1 < values.shape[last] <= NARROW and len(dims) == 1 and dims[0] in (last, -1)
    if few and values.is_contiguous() and mask.is_contiguous():
        return _stood(values), _stood(mask)
    return walkable(values), mask


def _stood(x: Tensor) -> Tensor:
    *left, width = x.shape
    out, rows = empty((width, *left), x.dtype), math.prod(left)
    run(_stand, flat(x), flat(out), rows, width, tasks=rows, elements=x.numel() // LIGHT)
    return out.movedim(0, -1)


@compiled
def _stand(x: Any, out: Any, rows: int, width: int, lo: int, hi: int) -> None:
    x, out = at(x), at(out)
    for k in range(width):
        column, given = out[k * rows + lo : k * rows + hi], x[lo * width + k : hi * width]
        for r in range(hi - lo):
            column[r] = given[r * width]


def like(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return new memory for a result, without gaps, in the order of ``values``."""
    if values.is_contiguous():
        return empty(values.shape, dtype)
    return empty(values.numel(), dtype).as_strided(
        values.shape, torch.empty_like(values, device="meta").stride()
    )


def _table(outer: Sequence[Axis], number: int) -> Any:
    return np.array([(a.size, *a.strides) for a in outer], dtype=np.int64).reshape(-1, 1 + number)


def _aligned(shape: torch.Size, strides: Strides) -> tuple[Strides, tuple[bool, ...]]:
    """Return the strides after the copies that are needed, and which tensors to copy: see :class:`Partition`."""
    first = strides[0]
    _, inner = min(((stride, d) for d, stride in enumerate(first) if shape[d] > 1), default=(1, None))
    copied = tuple(other != first and inner is not None and other[inner] > 1 for other in strides)
    if not any(copied):
        return strides, copied
    dense = torch.empty_like(torch.empty_strided(shape, first, device="meta")).stride()  # see ``like``
    return tuple(dense if copy else other for other, copy in zip(strides, copied, strict=True)), copied


def _shape_and_strides(tensors: Sequence[Tensor]) -> tuple[torch.Size, Strides]:
    return tensors[0].shape, tuple([x.stride() for x in tensors])


def partition(
    tensors: Sequence[Tensor], dims: Sequence[int], tile: int, mask: int | None = None, light: int | None = 1
) -> tuple[tuple[Tensor, ...], Partition]:
    """Cut the reduction of ``tensors`` (the first of them :func:`walkable`; all not empty) over ``dims``.

    ``mask`` is the index of the mask among the tensors: rows that share one entry of it (features under
    padding) are one row where they are reduced together: see :func:`_joined`. ``light`` entries take the time of
    one: a reduction that one thread does anyway is not cut into pieces, which Python would have to merge. None: neither
    are those of several threads, and no rows are joined.

    Returns:
        The tensors, copied where they could not be traversed with the first, and the cut.
    """
    cut = _partition(*_shape_and_strides(tensors), tuple(dims), tile, mask, light)
    return _copied(tensors, cut.copied), cut


def cut_of(
    values: Tensor, mask: Tensor, dims: Sequence[int], tile: int, light: int = 1, counts: bool = True,
    joins: bool = True,
) -> tuple[Tensor, Tensor, Partition, int]:  # fmt: skip
    """Cut the reduction of ``values`` under ``mask``, whatever their strides.

    ``counts``: the caller multiplies by the number of repetitions, so that each entry is read once. ``joins``: the loop
    takes rows that share one entry of the mask as one, see :func:`partition`, also for ``light``.

    Returns:
        Values and mask as the loops read them, the cut, and how often each entry is repeated (:func:`unrepeated`).
    """
    values, mask, repeats = unrepeated(values, mask, dims) if counts else (values, mask, 1)
    (values, mask), part = partition(standing(values, mask, dims), dims, tile, 1 if joins else None, light)
    return values, mask, part, repeats


def _copied(tensors: Sequence[Tensor], copied: tuple[bool, ...]) -> tuple[Tensor, ...]:
    if True not in copied:
        return tuple(tensors)
    return tuple([copied_like(x, tensors[0]) if copy else x for x, copy in zip(tensors, copied, strict=True)])


def copied_like(x: Tensor, first: Tensor) -> Tensor:
    """A copy of ``x``, broadcast, in the shape and order of ``first``."""
    return like(first, x.dtype).copy_(x.detach())


@functools.lru_cache(KEPT)
def _partition(
    shape: torch.Size, strides: Strides, dims: tuple[int, ...], tile: int, mask: int | None, light: int | None
) -> Partition:
    chosen = tuple(sorted(d % len(shape) for d in dims))
    strides, copied = _aligned(shape, strides)
    merged, order = axes(shape, strides, chosen)
    if not any(axis.reduced for axis in merged):
        # reduced dimensions of size 1 only: groups of one entry each
        merged.append(Axis(1, True, (1,) * len(strides)))
    outer, summed, inner = nest(merged)
    if mask is not None and inner is None and outer and outer[-1].reduced:
        outer, summed = _joined(outer, summed, mask)
    rows = math.prod(axis.size for axis in outer)
    joined, pieces = 1, 1
    if light is not None:
        summed, inner, joined = _widened(rows, summed, inner)
    tiles = -(-inner.size // tile) if inner else 1
    if light is not None and rows * tiles < MIN_TASKS and math.prod(shape) >= SERIAL * light:
        piece = PIECE if inner is None else max(256, summed.size * rows * tiles // MIN_TASKS)
        pieces = -(-summed.size // piece)
        pieces = -(-summed.size // _piece(summed, pieces))  # none is empty
    return Partition(shape, chosen, order, outer, summed, inner, joined, pieces, tile, copied)


def _widened(rows: int, summed: Axis, inner: Axis | None) -> tuple[Axis, Axis | None, int]:
    """Join narrow rows that are consecutive in every tensor: short loops cost as much as long ones.

    Joined rows are merged with the pieces, so there must be few compared with the rows.
    """
    if inner is None or rows * summed.size < MANY_ROWS:
        return summed, inner, 1
    if summed.strides != tuple([inner.size * s for s in inner.strides]):
        return summed, inner, 1
    most = min(WIDE // inner.size, summed.size // 32)
    joined = next((n for n in range(most, 1, -1) if summed.size % n == 0), 1)
    summed = Axis(summed.size // joined, True, tuple([joined * s for s in summed.strides]))
    return summed, Axis(joined * inner.size, False, inner.strides), joined


def _joined(outer: list[Axis], row: Axis, mask: int) -> tuple[list[Axis], Axis]:
    """Join consecutive rows that share one mask entry each: the mask's step is ``-n``, for n entries."""
    steps = list(outer[-1].strides)
    if steps.pop(mask) != 1 or steps != [row.size * s for i, s in enumerate(row.strides) if i != mask]:
        return outer, row
    if row.size == 1 or row.strides[mask] != 0:
        return outer, row
    strides = tuple([-row.size if i == mask else s for i, s in enumerate(row.strides)])
    return outer[:-1], Axis(outer[-1].size * row.size, row.reduced, strides)


def _piece(summed: Axis, pieces: int) -> int:
    """The length of a piece, in whole entries of the mask."""
    each = max(-min(summed.strides), 1)
    return -(-summed.size // (pieces * each)) * each


@dataclass(frozen=True)
class Walk:
    """The traversal of tensors of one shape, entry by entry.

    Attributes:
        tasks: their number.
        geometry: the arguments ``outer, length, steps, pieces, piece`` of a loop; the innermost stride is 1 in the
            first tensor, 0 or 1 in the others, and may be negative in a mask.
        copied: as in :class:`Partition`.
    """

    tasks: int
    geometry: tuple[Any, ...]
    copied: tuple[bool, ...]


def walk(out: Tensor, *others: Tensor, mask: int | None = None) -> tuple[tuple[Tensor, ...], Walk]:
    """Cut a pass that writes ``out`` (without gaps, not empty), reading ``others``, which broadcast to its shape.

    ``mask`` is the index of a mask among all of them, as in :func:`partition`.

    Returns:
        All tensors, copied where they could not be traversed with ``out``, and the cut.
    """
    way = _walk(out.shape, out.stride(), tuple([(x.shape, x.stride()) for x in others]), mask)
    tensors = (out, *others)
    return (_copied(tensors, way.copied) if True in way.copied else tensors), way


@functools.lru_cache(KEPT)
def _walk(
    shape: torch.Size, steps: tuple[int, ...], others: tuple[tuple[torch.Size, tuple[int, ...]], ...], mask: int | None
) -> Walk:  # fmt: skip
    expanded = [torch.empty_strided(*other, device="meta").expand(shape).stride() for other in others]
    strides, copied = _aligned(shape, (steps, *expanded))
    merged, _ = axes(shape, strides, ())
    inner = merged.pop() if merged else Axis(1, False, (1,) + (0,) * (len(strides) - 1))
    if mask is not None and merged:
        merged, inner = _joined(merged, inner, mask)
    piece = _piece(inner, -(-inner.size // PIECE))
    pieces = -(-inner.size // piece)
    tasks = math.prod(axis.size for axis in merged) * pieces
    return Walk(tasks, (_table(merged, len(strides)), inner.size, inner.strides, pieces, piece), copied)
