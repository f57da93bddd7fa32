"""Cutting reductions into tasks.

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

from maskgrad.kernels.cpu.threads import LIGHT, SERIAL
from maskgrad.kernels.layout import Axis, axes, nest

PIECE = 16384  # entries of a long row that make one task
MIN_TASKS = 32
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
        return self.pieces == 1 and not any(axis.reduced for axis in self.outer)

    @cached_property
    def geometry(self) -> tuple[Any, ...]:
        """The arguments ``outer, steps, length, pieces, piece, width, inners`` of a loop."""
        number = len(self.copied)
        return (
            _table(self.outer, number), self.summed.strides, self.summed.size, self.pieces,
            -(-self.summed.size // self.pieces), self.width, self.inner.strides if self.inner else (0,) * number,
        )  # fmt: skip

    def split(self, results: Tensor) -> tuple[Tensor, list[int]]:
        """The loops' results with a dimension for each axis left, and which of these are to be merged."""
        left = [*self.outer, Axis(self.pieces, True, ())]
        sizes = [*(axis.size for axis in left), self.width]
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
        return torch.empty(self._final[keepdim] if self.is_direct else self.results, dtype=dtype)

    def arranged(self, merged: Tensor, keepdim: bool) -> Tensor:
        """The merged results as the reduction returns them: kept dimensions in their order."""
        final = self._final[keepdim]
        if self._back is None:
            return merged if merged.shape == final else merged.view(final)
        return (
            merged.view([self.shape[d] for d in self._kept]).permute(self._back).reshape(final).contiguous()
        )


def dense_or_copied(values: Tensor) -> Tensor:
    """``values``, copied unless its entries are distinct and its innermost ones neighbours."""
    if values.is_contiguous():
        return values
    strides = [stride for size, stride in zip(values.shape, values.stride(), strict=True) if size > 1]
    return values if not strides or min(strides) == 1 else values.contiguous()


def _table(outer: Sequence[Axis], number: int) -> Any:
    return np.array([(a.size, *a.strides) for a in outer], dtype=np.int64).reshape(-1, 1 + number)


def _aligned(shape: torch.Size, strides: Strides) -> tuple[Strides, tuple[bool, ...]]:
    """Return the strides after the copies that are needed, and which tensors to copy: see :class:`Partition`."""
    first = strides[0]
    _, inner = min(((stride, d) for d, stride in enumerate(first) if shape[d] > 1), default=(1, None))
    copied = tuple(other != first and inner is not None and other[inner] > 1 for other in strides)
    if not any(copied):
        return strides, copied
    dense = torch.empty_like(torch.empty_strided(shape, first, device="meta")).stride()  # of ``empty_like``
    return tuple(dense if copy else other for other, copy in zip(strides, copied, strict=True)), copied


def partition(
    tensors: Sequence[Tensor], dims: Sequence[int], tile: int
) -> tuple[tuple[Tensor, ...], Partition]:
    """Cut the reduction of ``tensors`` (the first of them :func:`dense_or_copied`; all not empty) over ``dims``.

    Returns:
        The tensors, copied where they could not be traversed with the first, and the cut.
    """
    first = tensors[0]
    found = _partition(first.shape, tuple([x.stride() for x in tensors]), tuple(dims), tile)
    if True not in found.copied:
        return tuple(tensors), found
    each = zip(tensors, found.copied, strict=True)
    return tuple(
        [torch.empty_like(first, dtype=x.dtype).copy_(x.detach()) if copy else x for x, copy in each]
    ), found


@functools.lru_cache(KEPT)
def _partition(shape: torch.Size, strides: Strides, dims: tuple[int, ...], tile: int) -> Partition:
    chosen = tuple(sorted(d % len(shape) for d in dims))
    strides, copied = _aligned(shape, strides)
    merged, order = axes(shape, strides, chosen)
    if not any(axis.reduced for axis in merged):
        # reduced dimensions of size 1 only: groups of one entry each
        merged.append(Axis(1, True, (1,) * len(strides)))
    outer, summed, inner = nest(merged)
    rows, pieces = math.prod(axis.size for axis in outer), 1
    tiles = -(-inner.size // tile) if inner else 1
    # what one thread does anyway is not split into pieces, which PyTorch would have to merge
    if rows * tiles < MIN_TASKS and math.prod(shape) >= SERIAL * LIGHT:
        piece = PIECE if inner is None else max(256, summed.size * rows * tiles // MIN_TASKS)
        pieces = -(-summed.size // piece)
        pieces = -(-summed.size // -(-summed.size // pieces))  # none is empty
    return Partition(shape, chosen, order, outer, summed, inner, pieces, tile, copied)
