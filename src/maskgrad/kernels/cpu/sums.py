r"""Two sums at once over the specified entries: the one reduction that has loops.

.. math:: \sum_i m_i\, p(x_i, c), \qquad \sum_i m_i\, q(x_i, c)

A family gives the formula of both terms: a mean sums entries and ones, a variance differences and their squares.
Entries are selected, never multiplied by the mask (0 * NaN is NaN), and added in float64 (integers in int64): less
rounding than in ``torch.sum``. Where sums are split into tasks depends on the shape alone, so results do not depend on
the number of threads.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import at, decode, flat, formula, reordered
from maskgrad.kernels.cpu.partition import dense_or_copied, partition
from maskgrad.kernels.cpu.threads import LIGHT, run
from maskgrad.kernels.kernel import HALVES

_ZEROS = np.int64(0), np.float64(0)
TILE = 1024  # columns reduced together: their sums stay in the first-level cache


def sums_of_pairs(
    loops: tuple[Any, Any],
    x: Tensor,
    mask: Tensor,
    center: Tensor | None,
    dim: Sequence[int],
    keepdim: bool = True,
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float64),
) -> tuple[Tensor, Tensor]:
    """The two sums of a formula of :func:`pair_loops` over ``dim``; without a ``center`` it must not use it."""
    x = dense_or_copied(x.detach())
    center = x.as_strided(x.shape, (0,) * x.ndim) if center is None else center.detach().expand(x.shape)
    tensors, part = partition((x, mask, center), dim, TILE)
    wide = torch.float64 if x.is_floating_point() else torch.int64
    sums = [part.empty(dtype if part.is_direct else wide, keepdim) for dtype in dtypes]
    memory, *others = map(flat, tensors)
    run(
        loops[part.inner is not None], memory, *others, *part.geometry, _scalars(x.dtype),
        _ZEROS[x.is_floating_point()], *map(flat, sums), tasks=part.tasks, elements=x.numel() // LIGHT,
    )  # fmt: skip
    if not part.is_direct:
        merged = [part.arranged(parts.sum(extra), keepdim) for parts, extra in map(part.split, sums)]
        sums = [found.to(dtype) for found, dtype in zip(merged, dtypes, strict=True)]
    return sums[0], sums[1]


def wide(x: Tensor) -> torch.dtype:
    """Return the type that the entries of ``x`` are computed in."""
    return torch.float32 if x.dtype in HALVES else x.dtype


@functools.lru_cache
def _scalars(dtype: torch.dtype) -> tuple[Any, ...]:
    """Return 0 and 1 in the type that entries are computed in; int64 for integers."""
    kind: Any = np.float32 if dtype.is_floating_point else np.int64
    kind = np.float64 if dtype == torch.float64 else kind
    return kind(0), kind(1)


@formula
def row_offset(outer: Any, row: int, tensor: int) -> int:
    """Return where row ``row`` of a tensor begins. Divisions dominate short rows: the slowest axis needs none."""
    start = 0
    for axis in range(outer.shape[0] - 1, 0, -1):
        size = outer[axis, 0]
        start += row % size * outer[axis, 1 + tensor]
        row //= size
    return start + row * outer[0, 1 + tensor] if outer.shape[0] else start


@formula
def split_task(task: int, pieces: int, piece: int) -> tuple[int, int]:
    """Return the row of a task, and where its piece of the row begins."""
    return (task, 0) if pieces == 1 else (task // pieces, task % pieces * piece)


def pair_loops(of: Any) -> tuple[Any, Any]:
    """Loops over rows and columns that sum both results of ``of(x, c, n)``; ``n`` are 0 and 1."""

    @reordered
    def rows(
        x: Any, m: Any, c: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int,
        inners: Any, n: Any, wide: Any, sums: Any, products: Any, lo: int, hi: int,
    ) -> None:  # fmt: skip
        """Task t adds piece t % pieces of row t // pieces. The step of ``x`` is 1, of the mask 0 or 1."""
        x, m, c, sums, products = at(x), at(m), at(c), at(sums), at(products)
        for task in range(lo, hi):
            row, start = split_task(task, pieces, piece)
            size, center = np.uint64(min(piece, length - start)), c[row_offset(outer, row, 2)]
            x0 = np.uint64(row_offset(outer, row, 0) + start)
            m0 = np.uint64(row_offset(outer, row, 1) + start * steps[1])
            a, b = wide, wide
            if steps[1]:
                for u in range(size):
                    p, q = of(decode(x[x0 + u]), center, n)
                    a += p if m[m0 + u] != 0 else n[0]
                    b += q if m[m0 + u] != 0 else n[0]
            elif m[m0] != 0:
                for u in range(size):
                    p, q = of(decode(x[x0 + u]), center, n)
                    a += p
                    b += q
            sums[task], products[task] = a, b

    @reordered
    def columns(
        x: Any, m: Any, c: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int,
        inners: Any, n: Any, wide: Any, sums: Any, products: Any, lo: int, hi: int,
    ) -> None:  # fmt: skip
        """Task t adds tile t % tiles of the columns, over one piece of the rows."""
        x, m, c, sums, products = at(x), at(m), at(c), at(sums), at(products)
        tiles = (width + TILE - 1) // TILE
        a, b, center = np.full(TILE, wide), np.full(TILE, wide), np.full(TILE, c[0])
        for task in range(lo, hi):
            first = task % tiles * TILE
            w = np.uint64(min(TILE, width - first))
            row, start = split_task(task // tiles, pieces, piece)
            x0, m0 = row_offset(outer, row, 0) + first, row_offset(outer, row, 1) + first * inners[1]
            c0 = np.uint64(row_offset(outer, row, 2) + first * inners[2])
            for u in range(w):
                a[u], b[u], center[u] = wide, wide, c[c0 + u * np.uint64(inners[2])]
            for r in range(start, min(start + piece, length)):
                xr, mr = np.uint64(x0 + r * steps[0]), np.uint64(m0 + r * steps[1])
                if inners[1]:
                    for u in range(w):  # two loops: LLVM checks a limited number of pointer pairs for overlap
                        p, _ = of(decode(x[xr + u]), center[u], n)
                        a[u] += p if m[mr + u] != 0 else n[0]
                    for u in range(w):
                        _, q = of(decode(x[xr + u]), center[u], n)
                        b[u] += q if m[mr + u] != 0 else n[0]
                elif m[mr] != 0:
                    for u in range(w):
                        p, _ = of(decode(x[xr + u]), center[u], n)
                        a[u] += p
                    for u in range(w):
                        _, q = of(decode(x[xr + u]), center[u], n)
                        b[u] += q
            base = np.uint64(task // tiles * width + first)
            for u in range(w):
                sums[base + u], products[base + u] = a[u], b[u]

    return rows, columns
