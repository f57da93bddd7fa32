r"""Sums, means and counts over the specified entries: one pass over values and mask.

.. math:: s_o = \sum_r m_{or} v_{or}, \qquad n_o = \sum_r m_{or}, \qquad \text{mean}_o = s_o / \max(1, n_o)

:math:`m v` is a selection, never a product (0 * NaN is NaN). Entries are added in blocks of at most
``BLOCK`` in the type of the values (halves in float32), blocks in float64: less rounding than in ``torch.sum``. Where
sums are cut into pieces depends on the shape alone, so results do not depend on the number of threads.

Legend: o outer, r reduced, k kept; prefixes v (values), m (mask), g (gradient) name the array an offset belongs to.
Complex values are left to the reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import reductions as family
from maskgrad.kernels.cpu.compiler import compiled, decode, flat, reordered
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.threads import LIGHT, run
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.layout import Axis, axes, nest, offsets, unrepeated
from maskgrad.kernels.reductions import mean_dtype, sum_dtype

BLOCK = 1024  # entries of a row added in their own type
ROWS = 16  # rows of a block of columns, as in torch.sum (their number must fit into uint8)
TILE = 16384  # bytes of the sums of columns summed together: they stay in the first-level cache
PIECE = 16384  # entries of a long row that make one task
MIN_TASKS = 32


def masked_count(mask: Tensor, dim: Sequence[int], keepdim: bool) -> Tensor:
    """As in the reference."""
    return _reduce(mask, mask, dim, keepdim, torch.int64, mean=False)[0]


def masked_sum(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """As in the reference."""
    return _reduce(values, mask, dim, keepdim, sum_dtype(values.dtype, dtype), mean=False)


def masked_mean(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """As in the reference."""
    return _reduce(values, mask, dim, keepdim, mean_dtype(values.dtype, dtype), mean=True)


def masked_expand(grad: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """As in the reference: one pass that writes the result."""
    out = empty(mask.shape, dtype)
    if not out.numel():
        return out
    grad = grad.to(dtype).expand(mask.shape)
    outer, inner, mask, grad = _writable(out, mask, grad)
    pieces = -(-inner.size // PIECE)
    # The numbers are only moved, so their bits may travel as integers: three compiled versions serve every dtype.
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[out.element_size()]
    run(
        _spread, flat(out.view(bits)), flat(mask), flat(grad.view(bits)), *offsets(outer, 3), inner.size,
        *inner.strides[1:], pieces, tasks=math.prod(a.size for a in outer) * pieces, elements=out.numel(),
    )  # fmt: skip
    return out


def _writable(out: Tensor, mask: Tensor, grad: Tensor) -> tuple[list[Axis], Axis, Tensor, Tensor]:
    """The axes of ``out``, the inner one apart; in mask and gradient its stride is 0 or 1, after a copy if need be."""
    merged, _ = axes((out, mask, grad), ())
    inner = merged.pop() if merged else Axis(1, False, (1, 0, 0))
    if inner.strides[1] > 1:
        return _writable(out, mask.contiguous(), grad)
    if inner.strides[2] > 1:  # rare: a kept inner dimension under a permuted gradient
        return _writable(out, mask, grad.contiguous())
    return merged, inner, mask, grad


def _reduce(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, dtype: torch.dtype, mean: bool
) -> tuple[Tensor, Tensor]:
    dims = sorted(d % values.ndim for d in dim) if values.ndim else []
    # Nothing to add up, so that the reference costs nothing; or sums that the loops do not know.
    if not values.numel() or not dims or dtype.is_complex:
        body = family.masked_mean.reference if mean else family.masked_sum.reference
        return body(values, mask, tuple(dim), keepdim, dtype)
    shape = values.shape
    values, mask, repeats = unrepeated(values, mask, dims)
    values = _storable(values, dtype)
    merged, order = axes((values, mask), dims)
    if merged and (merged[-1].strides[0] != 1 or merged[-1].strides[1] > 1):
        # Odd layouts (a strided slice, an expanded tensor, a mask that lies across the values) are copied once.
        values = values.contiguous()
        mask = mask if mask.stride(-1) == 0 else mask.contiguous()
        merged, order = axes((values, mask), dims)
        if merged and merged[-1].strides[1] > 1:
            mask = mask.contiguous()
            merged, order = axes((values, mask), dims)
    if not any(axis.reduced for axis in merged):  # reduced dimensions of size 1 only: a sum of one entry each
        merged.append(Axis(1, True, (1, 1)))
    out, count, left = _partial_sums(values, mask, merged, dtype, mean)
    return _finish(out, count, left, shape, order, dims, keepdim, dtype, mean, repeats)


def _storable(values: Tensor, dtype: torch.dtype) -> Tensor:
    """``values``, cast to ``dtype`` first unless the kernel's own widening to it is exact."""
    if values.dtype in (torch.int8, torch.int16):
        values = values.to(torch.int32)  # int16 is how float16 travels
    exact = (
        values.dtype == dtype
        or (values.dtype in HALVES and dtype in (torch.float32, torch.float64))
        or (values.dtype, dtype) == (torch.float32, torch.float64)
        or not (values.is_floating_point() or dtype.is_floating_point)
    )
    return values if exact else values.to(dtype)


def _partial_sums(
    values: Tensor, mask: Tensor, merged: list[Axis], dtype: torch.dtype, mean: bool
) -> tuple[Tensor, Tensor, list[Axis]]:
    """Sums and counts over one axis, cut into pieces if it is long, and the axes that the result still has."""
    outer, summed, inner = nest(merged)
    rows = math.prod(axis.size for axis in outer)
    zero: Any
    wide: Any
    if not values.is_floating_point():
        zero, wide, total = np.int64(0), np.int64(0), torch.int64
    else:
        narrow = values.dtype != torch.float64 and dtype != torch.float64
        zero, wide, total = (np.float32(0) if narrow else np.float64(0)), np.float64(0), torch.float64
    width = inner.size if inner else 1
    tile = min(TILE // zero.itemsize, width)
    tiles, pieces = -(-width // tile), 1
    if rows * tiles < MIN_TASKS:
        pieces = -(
            -summed.size // (PIECE if inner is None else max(256, summed.size * rows * tiles // MIN_TASKS))
        )
    length = -(-summed.size // pieces)
    left = [*outer, Axis(pieces, True, ()), *([inner] if inner else [])]
    done = pieces == 1 and not any(axis.reduced for axis in outer)
    if zero.dtype == np.float32 and done:
        total = torch.float32
    out = empty(rows * pieces * width, total)
    count = empty(rows * pieces * width, torch.int64)
    shape = (*offsets(outer, 2), summed.size, *summed.strides, pieces, length)
    rest = (zero, zero + zero.dtype.type(1), wide, mean and done, out.numpy(), count.numpy())
    if inner is None:
        run(
            _rows,
            flat(values),
            flat(mask),
            *shape,
            *rest,
            tasks=rows * pieces,
            elements=values.numel() // LIGHT,
        )
    else:
        run(
            _columns, flat(values), flat(mask), *shape, width, tile, inner.strides[1], *rest,
            tasks=rows * pieces * tiles, elements=values.numel() // LIGHT,
        )  # fmt: skip
    return out, count, left


def _finish(
    out: Tensor,
    count: Tensor,
    left: list[Axis],
    shape: torch.Size,
    order: list[int],
    dims: list[int],
    keepdim: bool,
    dtype: torch.dtype,
    mean: bool,
    repeats: int,
) -> tuple[Tensor, Tensor]:
    """Add up what the kernel left apart, divide, and put the kept dimensions back into their order."""
    extra = [i for i, axis in enumerate(left) if axis.reduced]
    if any(left[i].size > 1 for i in extra):
        sizes = [axis.size for axis in left]
        out, count = out.view(sizes).sum(extra), count.view(sizes).sum(extra)
        if mean:
            out = out / count.clamp(min=1)
    if repeats > 1:
        out, count = out if mean else out * repeats, count * repeats
    kept = [d for d in order if d not in dims]
    back = [kept.index(d) for d in sorted(kept)]
    final = [1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims]
    sizes = [shape[d] for d in kept]
    out, count = (x.view(sizes).permute(back).reshape(final).contiguous() for x in (out, count))
    return out.to(dtype), count


@reordered
def _add_block(v: Any, m: Any, zero: Any, one: Any) -> Any:
    s, n = zero, zero
    for r in range(v.size):  # sum and count in one type: both loops then have vectors of one length
        specified = m[r] != 0
        s += decode(v[r]) if specified else zero
        n += one if specified else zero
    return s, n


@reordered
def _add_dense_block(v: Any, zero: Any) -> Any:
    s = zero
    for r in range(v.size):
        s += decode(v[r])
    return s


@reordered
def _rows(
    v: Any, m: Any, sizes: Any, v_strides: Any, m_strides: Any, length: int, v_step: int, m_step: int, pieces: int,
    piece: int, zero: Any, one: Any, wide: Any, mean: bool, out: Any, count: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t sums piece t % pieces of row t // pieces. ``v_step`` is 1; ``m_step`` is 0 or 1."""
    for task in range(lo, hi):
        rest, start = task // pieces, task % pieces * piece
        stop = min(start + piece, length)
        v_row, m_row = 0, 0
        for axis in range(sizes.size - 1, -1, -1):
            i = rest % sizes[axis]
            rest //= sizes[axis]
            v_row += i * v_strides[axis]
            m_row += i * m_strides[axis]
        s, n = wide, 0
        if m_step == 0:  # the whole row is specified, or none of it
            if m[m_row] != 0 and start < stop:
                n = stop - start
                for r in range(start, stop, BLOCK):
                    s += _add_dense_block(v[v_row + r : v_row + min(r + BLOCK, stop)], zero)
        else:
            for r in range(start, stop, BLOCK):
                end = min(r + BLOCK, stop)
                block_s, block_n = _add_block(
                    v[v_row + r : v_row + end], m[m_row + r : m_row + end], zero, one
                )
                s += block_s
                n += int(block_n)
        if mean:
            out[task] = s / max(n, 1)
        else:
            out[task] = s
        count[task] = n


@reordered
def _add_columns(v: Any, m: Any, s: Any, n: Any, zero: Any) -> None:
    for k in range(v.size):
        s[k] += decode(v[k]) if m[k] != 0 else zero
    for k in range(v.size):
        n[k] += np.uint8(m[k] != 0)


@reordered
def _add_four(
    v: Any, w: Any, x: Any, y: Any, m: Any, n: Any, o: Any, p: Any, sums: Any, counts: Any, zero: Any
) -> None:
    """Four rows of values and of a mask."""
    for k in range(v.size):
        sums[k] += ((decode(v[k]) if m[k] != 0 else zero) + (decode(w[k]) if n[k] != 0 else zero)) + (
            (decode(x[k]) if o[k] != 0 else zero) + (decode(y[k]) if p[k] != 0 else zero)
        )
    for k in range(v.size):
        counts[k] += np.uint8(m[k] != 0) + np.uint8(n[k] != 0) + np.uint8(o[k] != 0) + np.uint8(p[k] != 0)


@reordered
def _columns(
    v: Any, m: Any, sizes: Any, v_strides: Any, m_strides: Any, length: int, v_step: int, m_step: int, pieces: int,
    piece: int, width: int, tile: int, m_inner: int, zero: Any, one: Any, wide: Any, mean: bool, out: Any, count: Any,
    lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t sums tile t % tiles of the columns, over one piece of the rows. ``m_inner`` is 0 or 1.

    Four rows at a time, as wide as the sums stay in the cache: they are read and written once for the four, and the
    processor foresees what comes next in memory, which it does not beyond a page (1024 columns at a time, row by row:
    9.3 ms for 4096 x 4096 entries; now 4.1; a copy of as many bytes takes 8).
    """
    tiles = (width + tile - 1) // tile
    block_s, block_n = np.full(tile, zero), np.zeros(tile, np.uint8)
    s, n = np.full(tile, wide), np.zeros(tile, np.int64)
    for task in range(lo, hi):
        first = task % tiles * tile
        w = min(tile, width - first)
        rest, start = task // tiles // pieces, task // tiles % pieces * piece
        stop = min(start + piece, length)
        v_row, m_row = first, first * m_inner
        for axis in range(sizes.size - 1, -1, -1):
            i = rest % sizes[axis]
            rest //= sizes[axis]
            v_row += i * v_strides[axis]
            m_row += i * m_strides[axis]
        s[:w], n[:w] = wide, 0
        for block in range(start, stop, ROWS):
            block_s[:w], block_n[:w] = zero, 0
            whole, end = 0, min(block + ROWS, stop)
            fours = (end - block) // 4 if m_inner else 0
            for four in range(fours):
                a, b = v_row + (block + 4 * four) * v_step, m_row + (block + 4 * four) * m_step
                c, d, e = a + v_step, a + 2 * v_step, a + 3 * v_step
                f, g, h = b + m_step, b + 2 * m_step, b + 3 * m_step
                _add_four(
                    v[a : a + w], v[c : c + w], v[d : d + w], v[e : e + w],
                    m[b : b + w], m[f : f + w], m[g : g + w], m[h : h + w], block_s, block_n, zero,
                )  # fmt: skip
            for r in range(block + 4 * fours, end):
                v0, m0 = v_row + r * v_step, m_row + r * m_step
                if m_inner:
                    _add_columns(v[v0 : v0 + w], m[m0 : m0 + w], block_s, block_n, zero)
                elif (
                    m[m0] != 0
                ):  # a row that is there as a whole: indices without a sign make vector code of it
                    whole += 1
                    first_value = np.uint64(v0)
                    for u in range(np.uint64(w)):
                        block_s[u] += decode(v[first_value + u])
            for k in range(w):
                s[k] += block_s[k]
                n[k] += block_n[k] + whole
        base = task // tiles * width + first
        for k in range(w):
            if mean:
                out[base + k] = s[k] / max(n[k], 1)
            else:
                out[base + k] = s[k]
            count[base + k] = n[k]


@compiled
def _select(out: Any, m: Any, g: Any, g_step: int) -> None:
    if g_step:
        for k in range(out.size):
            out[k] = g[k] if m[k] != 0 else 0
    else:
        value = g[0]
        for k in range(out.size):
            out[k] = value if m[k] != 0 else 0


@compiled
def _spread(
    out: Any, m: Any, g: Any, sizes: Any, out_strides: Any, m_strides: Any, g_strides: Any, length: int, m_step: int,
    g_step: int, pieces: int, lo: int, hi: int,
) -> None:  # fmt: skip
    """Write g where m holds, else 0. Task t writes piece t % pieces of row t // pieces.

    Rows with one Boolean are often short (the features of a step in time). Indices without a sign need no look at
    whether they count from the end, so that a row is vector code without a slice, which costs as much as 64 numbers.
    """
    for task in range(lo, hi):
        rest, start = task // pieces, task % pieces * PIECE
        stop = min(start + PIECE, length)
        o_row, m_row, g_row = start, start * m_step, start * g_step
        for axis in range(sizes.size - 1, -1, -1):
            i = rest % sizes[axis]
            rest //= sizes[axis]
            o_row += i * out_strides[axis]
            m_row += i * m_strides[axis]
            g_row += i * g_strides[axis]
        o, a, b, size = np.uint64(o_row), np.uint64(m_row), np.uint64(g_row), np.uint64(stop - start)
        if m_step:
            row = out[o_row : o_row + stop - start]
            _select(row, m[m_row : m_row + row.size], g[g_row:], g_step)
        elif m[a] == 0:
            for k in range(size):
                out[o + k] = 0
        elif g_step:
            for k in range(size):
                out[o + k] = g[b + k]
        else:
            value = g[b]
            for k in range(size):
                out[o + k] = value
