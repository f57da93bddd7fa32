"""How a reduction, or a pass that broadcasts its results back, is cut into tasks.

A task is one piece of the reduced axis, of one row, or of one tile of columns (see ``layout.py``). What the loops
receive is the same for all: ``outer`` (sizes of the outer axes and the strides of each tensor along them), the
reduced axis (its ``steps`` and ``length``), the number of ``pieces`` and the length of a ``piece``, and the kept inner
axis (its ``width``, 1 for rows, and ``inners``, its strides). Cuts depend on shapes alone, never on the number of
threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.layout import Axis, axes, nest

PIECE = 16384  # entries of a long row that make one task
MIN_TASKS = 32


@dataclass(frozen=True)
class Partition:
    """Tensors of one shape, cut for a reduction; in the first the innermost stride is 1, in all others 0 or 1."""

    tensors: tuple[Tensor, ...]
    dims: tuple[int, ...]
    order: list[int]
    outer: list[Axis]
    summed: Axis
    inner: Axis | None
    pieces: int
    tile: int

    @property
    def rows(self) -> int:
        """The number of combinations of outer places."""
        return math.prod(axis.size for axis in self.outer)

    @property
    def width(self) -> int:
        """The number of columns; 1 for rows."""
        return self.inner.size if self.inner else 1

    @property
    def results(self) -> int:
        """How many results the loops write: one for each piece of each row or column."""
        return self.rows * self.pieces * self.width

    @property
    def tasks(self) -> int:
        """How many tasks there are."""
        return self.rows * self.pieces * -(-self.width // self.tile)

    @property
    def whole(self) -> bool:
        """Whether a result of the loops is one of the reduction; otherwise several are to be merged."""
        return self.pieces == 1 and not any(axis.reduced for axis in self.outer)

    def geometry(self) -> tuple[Any, ...]:
        """The arguments ``outer, steps, length, pieces, piece, width, inners`` of a loop."""
        outer = np.array([(a.size, *a.strides) for a in self.outer], dtype=np.int64)
        inners = self.inner.strides if self.inner else (0,) * len(self.tensors)
        return (
            outer.reshape(-1, 1 + len(self.tensors)), self.summed.strides, self.summed.size, self.pieces,
            -(-self.summed.size // self.pieces), self.width, inners,
        )  # fmt: skip

    def split(self, results: Tensor) -> tuple[Tensor, list[int]]:
        """The loops' results with a dimension for each axis left, and which of these are to be merged."""
        left = [*self.outer, Axis(self.pieces, True, ())]
        sizes = [*(axis.size for axis in left), self.width]
        return results.view(sizes), [i for i, axis in enumerate(left) if axis.reduced]

    def placed(self, merged: Tensor, keepdim: bool) -> Tensor:
        """The merged results as the reduction returns them: kept dimensions in their order."""
        shape = self.tensors[0].shape
        kept = [d for d in self.order if d not in self.dims]
        back = [kept.index(d) for d in sorted(kept)]
        final = [1 if d in self.dims else n for d, n in enumerate(shape) if keepdim or d not in self.dims]
        if kept == sorted(kept):
            return merged.view(final)
        return merged.view([shape[d] for d in kept]).permute(back).reshape(final).contiguous()


def walkable(values: Tensor) -> Tensor:
    """``values``, copied unless its entries are distinct and its innermost ones neighbours."""
    if values.is_contiguous():
        return values
    strides = [stride for size, stride in zip(values.shape, values.stride(), strict=True) if size > 1]
    return values if not strides or min(strides) == 1 else values.contiguous()


def like(values: Tensor, dtype: torch.dtype) -> Tensor:
    """New memory for a result, without gaps, in the order of ``values``."""
    if values.is_contiguous():
        return empty(values.shape, dtype)
    return empty(values.numel(), dtype).as_strided(
        values.shape, torch.empty_like(values, device="meta").stride()
    )


def _beside(x: Tensor, first: Tensor) -> Tensor:
    """``x``, copied into the order of ``first`` unless it can be walked along with it."""
    if x.stride() == first.stride():
        return x
    inner = min(
        ((stride, d) for d, stride in enumerate(first.stride()) if first.shape[d] > 1), default=(1, None)
    )[1]
    return x if inner is None or x.stride(inner) <= 1 else like(first, x.dtype).copy_(x)


def partition(tensors: Sequence[Tensor], dims: Sequence[int], tile: int) -> Partition:
    """Cut the reduction of ``tensors`` (the first of them :func:`walkable`; all not empty) over ``dims``."""
    first = tensors[0]
    chosen = tuple(sorted(d % first.ndim for d in dims))
    tensors = (first, *(_beside(x, first) for x in tensors[1:]))
    merged, order = axes(tensors, chosen)
    if not any(
        axis.reduced for axis in merged
    ):  # reduced dimensions of size 1 only: groups of one entry each
        merged.append(Axis(1, True, (1,) * len(tensors)))
    outer, summed, inner = nest(merged)
    rows = math.prod(axis.size for axis in outer)
    tiles = -(-inner.size // tile) if inner else 1
    pieces = 1
    if rows * tiles < MIN_TASKS:
        piece = PIECE if inner is None else max(256, summed.size * rows * tiles // MIN_TASKS)
        pieces = -(-summed.size // piece)
        pieces = -(-summed.size // -(-summed.size // pieces))  # none is empty
    return Partition(tensors, chosen, order, outer, summed, inner, pieces, tile)


@dataclass(frozen=True)
class Walk:
    """Tensors of one shape, walked entry by entry; the innermost stride is 1 in the first, 0 or 1 in the others."""

    tensors: tuple[Tensor, ...]
    outer: list[Axis]
    inner: Axis

    @property
    def tasks(self) -> int:
        """How many tasks there are."""
        return math.prod(axis.size for axis in self.outer) * -(-self.inner.size // PIECE)

    def geometry(self) -> tuple[Any, ...]:
        """The arguments ``outer, length, steps, pieces, piece`` of a loop."""
        outer = np.array([(a.size, *a.strides) for a in self.outer], dtype=np.int64)
        return (
            outer.reshape(-1, 1 + len(self.tensors)), self.inner.size, self.inner.strides,
            -(-self.inner.size // PIECE), PIECE,
        )  # fmt: skip


def walk(out: Tensor, *others: Tensor) -> Walk:
    """Cut a pass that writes ``out`` (without gaps, not empty), reading ``others``, broadcast to its shape."""
    tensors = (out, *(_beside(x.expand(out.shape), out) for x in others))
    merged, _ = axes(tensors, ())
    inner = merged.pop() if merged else Axis(1, False, (1,) + (0,) * len(others))
    return Walk(tensors, merged, inner)
