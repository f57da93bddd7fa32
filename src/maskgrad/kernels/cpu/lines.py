r"""Straight lines through the specified entries, and the sums for the derivatives of standardizing.

.. math:: y = (x - c)\,s\,w + b, \qquad \bar x = \bar y\,w\,s + (x - c)\,d + o, \qquad
          \sum m\,\bar y, \quad \sum m\,\bar y\,(x - c)

All but :math:`x` and :math:`\bar y` are constants of a group or parameters. The derivative of a variance is such a
line, and so is that of a norm. Blocks are added in the type of the values (half precision in float32), sums of blocks
in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import at, decode, flat, formula, reordered
from maskgrad.kernels.cpu.loops import cut, entrywise, place, same_everywhere, scalars, stretch, write
from maskgrad.kernels.cpu.partition import partition, walkable
from maskgrad.kernels.cpu.threads import run

BLOCK = 1024  # entries of a row added in their own type
ROWS = 16  # rows of a block of columns
TILE = 1024  # columns reduced together: their state stays in the first-level cache


@formula
def _line(x: Any, y: Any, center: Any, slope: Any, offset: Any, d: Any, n: Any) -> Any:
    return (x - center) * slope + offset


@formula
def _blend(x: Any, grad: Any, center: Any, scale: Any, slope: Any, offset: Any, n: Any) -> Any:
    return grad * scale + (x - center) * slope + offset


_LINE, _BLEND = entrywise(_line), entrywise(_blend)


def line(
    values: Tensor,
    mask: Tensor,
    center: Tensor | None,
    scale: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """``(v - c) s w + b`` where the mask holds, else 0, in the type of ``values``."""
    slope = scale if weight is None else scale * weight.detach().to(scale.dtype)
    return write(_LINE, values, None, mask, center, slope, bias)


def blend(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    center: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    slope: Tensor,
    offset: Tensor,
) -> Tensor:
    """``g w s + (v - c) d + o`` where the mask holds, else 0, in the type of ``values``."""
    scale = scale if weight is None else scale * weight
    return write(_BLEND, values, grad.to(values.dtype), mask, center, scale, slope, offset)


def pair_sums(
    grad: Tensor, values: Tensor, mask: Tensor, center: Tensor, dim: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The sums of ``g`` and of ``g (v - c)`` over ``dim``, which are kept; their type is that of ``center``."""
    first, second = sums_of_pairs(_PAIRS, values, grad.detach().to(values.dtype), mask, center, dim)
    return first.to(center.dtype), second.to(center.dtype)


def sums_of_pairs(
    loops: tuple[Any, Any],
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    center: Tensor | None,
    dim: Sequence[int],
    numbers: Sequence[float] = (),
    keepdim: bool = True,
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float64),
) -> tuple[Tensor, Tensor]:
    """The two sums of a formula of :func:`pair_loops` over ``dim``; without a ``center`` it must not use it."""
    x = walkable(x.detach())
    center = same_everywhere(x) if center is None else center.detach().contiguous().expand(x.shape)
    tensors, part = partition((x, y.detach(), mask, center), dim, TILE, mask=2)
    sums = [part.empty(dtype if part.is_direct else torch.float64, keepdim) for dtype in dtypes]
    run(
        loops[part.inner is not None], *[flat(t) for t in tensors], *part.geometry, scalars(x, numbers),
        *(flat(s) for s in sums), tasks=part.tasks, elements=x.numel() * 2,
    )  # fmt: skip
    if not part.is_direct:
        merged = [part.placed(parts.sum(extra), keepdim) for parts, extra in map(part.split, sums)]
        sums = [found.to(dtype) for found, dtype in zip(merged, dtypes, strict=True)]
    return sums[0], sums[1]


def pair_loops(of: Any) -> tuple[Any, Any]:
    """Loops over rows and columns that sum both results of ``of(x, y, c, n)``; ``n`` as in ``entrywise``."""

    @reordered
    def rows(
        x: Any, y: Any, m: Any, c: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int,
        inners: Any, n: Any, sums: Any, products: Any, lo: int, hi: int,
    ) -> None:  # fmt: skip
        """Task t adds piece t % pieces of row t // pieces. Steps: of ``x`` 1, of the mask see :func:`stretch`."""
        x, y, m, c, sums, products = at(x), at(y), at(m), at(c), at(sums), at(products)
        zero = n[0]
        mask = m if steps[2] > 0 else np.ones(BLOCK, np.uint8)
        others = y if steps[1] else np.full(BLOCK, y[0])
        for task in range(lo, hi):
            row, end = cut(task, pieces, piece)
            stop = min(end + piece, length)
            x0, y0, m_row = place(outer, row, 0), place(outer, row, 1), place(outer, row, 2)
            center, a, b = c[place(outer, row, 3)], 0.0, 0.0
            if steps[1] == 0:
                others[:] = y[y0]
            while end < stop:
                start = end
                end, there, m0 = stretch(m, m_row, start, stop, steps[2])
                if not there:
                    continue
                for r in range(start, end, BLOCK):
                    first, second = zero, zero
                    xr, yr = np.uint64(x0 + r), np.uint64(y0 + r if steps[1] else 0)
                    mr = np.uint64(m0 + r - start if steps[2] > 0 else 0)
                    for u in range(np.uint64(min(BLOCK, end - r))):
                        p, q = of(decode(x[xr + u]), decode(others[yr + u]), center, n)
                        first += p if mask[mr + u] != 0 else zero
                        second += q if mask[mr + u] != 0 else zero
                    a += first
                    b += second
            sums[task], products[task] = a, b

    @reordered
    def columns(
        x: Any, y: Any, m: Any, c: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int,
        inners: Any, n: Any, sums: Any, products: Any, lo: int, hi: int,
    ) -> None:  # fmt: skip
        """Task t adds tile t % tiles of the columns, over one piece of the rows."""
        x, y, m, c, sums, products = at(x), at(y), at(m), at(c), at(sums), at(products)
        tiles = (width + TILE - 1) // TILE
        zero = n[0]
        a, b, center = np.full(TILE, zero), np.full(TILE, zero), np.full(TILE, zero)
        mask = m if inners[2] else np.ones(TILE, np.uint8)
        others = y if inners[1] else np.full(TILE, y[0])
        for task in range(lo, hi):
            first = task % tiles * TILE
            w = np.uint64(min(TILE, width - first))
            row, start = cut(task // tiles, pieces, piece)
            x0, y0 = place(outer, row, 0) + first, place(outer, row, 1) + first * inners[1]
            m0, c0 = place(outer, row, 2) + first * inners[2], place(outer, row, 3) + first * inners[3]
            base = np.uint64(task // tiles * width + first)
            for u in range(w):
                center[u] = c[c0 + u * inners[3]]
                sums[base + u], products[base + u] = 0, 0
            for block in range(start, min(start + piece, length), ROWS):
                for u in range(w):
                    a[u], b[u] = zero, zero
                for r in range(block, min(block + ROWS, start + piece, length)):
                    m1, y1 = m0 + r * steps[2], y0 + r * steps[1]
                    if inners[2] == 0 and m[m1] == 0:
                        continue
                    if inners[1] == 0:
                        others[:] = y[y1]
                    xr, yr = np.uint64(x0 + r * steps[0]), np.uint64(y1 if inners[1] else 0)
                    mr = np.uint64(m1 if inners[2] else 0)
                    for u in range(w):  # two loops: LLVM checks a limited number of pointer pairs for overlap
                        p, _ = of(decode(x[xr + u]), decode(others[yr + u]), center[u], n)
                        a[u] += p if mask[mr + u] != 0 else zero
                    for u in range(w):
                        _, q = of(decode(x[xr + u]), decode(others[yr + u]), center[u], n)
                        b[u] += q if mask[mr + u] != 0 else zero
                for u in range(w):
                    sums[base + u] += a[u]
                    products[base + u] += b[u]

    return rows, columns


@formula
def _pair(x: Any, grad: Any, center: Any, n: Any) -> Any:
    return grad, grad * (x - center)


_PAIRS = pair_loops(_pair)
