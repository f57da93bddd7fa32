r"""Sums, means and counts over the specified entries: one pass over values and mask.

Entries are selected, never multiplied by the mask (0 * NaN is NaN), and added in blocks of at most ``BLOCK`` in the
type of the values (half precision in float32), blocks in float64: less rounding than in ``torch.sum``. Where sums are
cut into pieces depends on the shape alone, so results do not depend on the number of threads.

Legend: v values, m mask. Complex values are left to the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import reductions as family
from maskgrad.kernels.cpu.compiler import at, decode, flat, formula, reordered
from maskgrad.kernels.cpu.loops import cut, place, stretch
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.partition import cut_of
from maskgrad.kernels.cpu.threads import LIGHT, run
from maskgrad.kernels.filling.cpu import select
from maskgrad.kernels.reductions import mean_dtype, some, storable, sum_dtype

BLOCK = 1024  # entries of a row added in their own type
ROWS = 16  # rows of a block of columns, as in torch.sum (their number must fit into uint8)
TILE = 16384  # bytes of the sums of columns summed together: they stay in the first-level cache

#: The last step of a reduction.
SUM, MEAN, ROOT = 0, 1, 2


def masked_count(mask: Tensor, dim: Sequence[int], keepdim: bool) -> Tensor:
    return _reduce(_SUM, mask, mask, dim, keepdim, torch.int64)[0]


def masked_sum(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    found, present = _reduce(_SUM, values, mask, dim, keepdim, sum_dtype(values.dtype, dtype))
    return found, some(present, mask, dim, keepdim)


def masked_mean(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    return _reduce(_SUM, values, mask, dim, keepdim, mean_dtype(values.dtype, dtype), mean=True)


def masked_expand(grad: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    out = empty(mask.shape, dtype)
    select(out, grad if grad.dtype is dtype else grad.to(dtype), mask, 0)
    return out


#: By whether floats are summed, and in 32 bits: bytes per value, 0, 1, the initial 0 of block sums, and its dtype.
_NUMBERS: dict[tuple[bool, bool], tuple[int, Any, Any, Any, torch.dtype]] = {
    (True, True): (4, np.float32(0), np.float32(1), np.float64(0), torch.float64),
    (True, False): (8, np.float64(0), np.float64(1), np.float64(0), torch.float64),
    (False, True): (4, np.int32(0), np.int32(1), np.int64(0), torch.int64),
    (False, False): (8, np.int64(0), np.int64(1), np.int64(0), torch.int64),
}
_ANY = 2**62  # counts are not cut off
Loops = tuple[Callable[..., None], Callable[..., None]]


def _reduce(
    loops: Loops,
    values: Tensor,
    mask: Tensor,
    dim: Sequence[int],
    keepdim: bool,
    dtype: torch.dtype,
    mean: bool = False,
) -> tuple[Tensor, Tensor]:
    """Sums, and whether there is an entry; or means, and counts."""
    if dtype.is_complex:
        body = family.masked_mean.reference if mean else family.masked_sum.reference
        return body(values, mask, tuple(dim), keepdim, dtype)
    narrow = dtype != torch.float64 and values.dtype != torch.float64
    total = torch.float32 if narrow and values.is_floating_point() else None
    if values.dtype in (torch.int8, torch.int16):
        values = values.to(torch.int32)  # float16 is passed as int16
    if values.dtype is not dtype:
        values = storable(values, dtype)
    out, count = _sums(loops, values, mask, dim, keepdim, MEAN if mean else SUM, narrow, total)
    return out if out.dtype is dtype else out.to(dtype), count


def sum_of(
    loops: Loops, values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, last: int = SUM
) -> tuple[Tensor, Tensor]:
    """Run loops made by :func:`summing` on floats: sums or roots (float32, or float64 of it), and presence."""
    narrow = values.dtype != torch.float64
    total = torch.float32 if narrow else None
    return _sums(loops, values, mask, dim, keepdim, last, narrow, total)


def largest_key(
    loops: Loops, values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool
) -> tuple[Tensor, Tensor]:
    """The largest of integers that are terms of floats and as wide (0 if empty), and whether there is an entry."""
    return _sums(loops, values, mask, dim, keepdim, SUM, values.dtype != torch.float64, None, keys=True)


def _sums(
    loops: Loops,
    values: Tensor,
    mask: Tensor,
    dim: Sequence[int],
    keepdim: bool,
    last: int,
    narrow: bool,
    total: torch.dtype | None,
    keys: bool = False,
) -> tuple[Tensor, Tensor]:
    """Sums or roots and whether there is an entry, or means and counts.

    ``narrow``: blocks are added in float32. ``total`` is the type of the final result.
    """
    floats = values.is_floating_point() and not keys
    size, zero, one, more, stored = _NUMBERS[floats, narrow and (floats or keys)]
    values, mask, part, repeats = cut_of(values, mask, dim, TILE // size, LIGHT)
    if total is not None and part.whole:
        stored = total
    mean, root = last == MEAN, last == ROOT
    counts, at_once = mean or not part.is_direct, part.whole and (mean or repeats == 1)
    out, count = part.empty(stored, keepdim), part.empty(torch.int64 if counts else torch.bool, keepdim)
    run(
        loops[part.inner is not None], flat(values), flat(mask), *part.geometry, min(part.tile, part.width),
        zero, one, more, last if at_once else SUM, flat(out), flat(count), _ANY if counts else 1, tasks=part.tasks,
        elements=values.numel() // LIGHT,
    )  # fmt: skip
    if part.is_direct and repeats == 1:
        return out, count
    if not part.whole:
        (out, extra), (count, _) = part.split(out), part.split(count)
        if extra:
            out, count = out.amax(extra) if keys else out.sum(extra), count.sum(extra)
        if mean:
            out = out / count.clamp(min=1)
    if repeats > 1:
        out, count = out if mean or keys else out * repeats, count * repeats if mean else count
    if root and not at_once:
        out = out.sqrt()
    if not (mean or part.is_direct):
        count = count > 0
    return part.placed(out, keepdim), part.placed(count, keepdim)


@formula
def _plus(a: Any, b: Any) -> Any:
    return a + b


def summing(term: Any, join: Any = _plus) -> Loops:
    """Make loops over rows and columns that sum ``term(x, zero, one)`` of the specified entries, and count them.

    Or combine them with ``join``: in any order, with zero as the neutral element.
    """
    apart = join is not _plus

    @reordered
    def rows(
        v: Any, m: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any,
        tile: int, zero: Any, one: Any, wide: Any, last: int, out: Any, count: Any, most: int, lo: int, hi: int,
    ) -> None:  # fmt: skip
        """Task t sums piece t % pieces of row t // pieces. Steps are 1 for values, for the mask see :func:`stretch`."""
        v, m, out, count = at(v), at(m), at(out), at(count)
        for task in range(lo, hi):
            rest, start = cut(task, pieces, piece)
            stop = min(start + piece, length)
            v_row, m_row = place(outer, rest, 0), place(outer, rest, 1)
            s, n, end = wide, 0, start
            while end < stop:
                begin = end
                end, there, m_begin = stretch(m, m_row, begin, stop, steps[1])
                if not there:
                    continue
                if steps[1] <= 0:
                    n += end - begin
                for r in range(begin, end, BLOCK):
                    size, a = np.uint64(min(BLOCK, end - r)), np.uint64(v_row + r)
                    block_s = zero
                    if steps[1] <= 0:
                        for u in range(size):
                            block_s = join(block_s, term(decode(v[a + u]), zero, one))
                        s = join(s, block_s)
                        continue
                    block_n, b = zero, np.uint64(m_begin + r - begin)
                    if apart:  # other combinations vectorise only separately
                        for u in range(size):
                            entry = term(decode(v[a + u]), zero, one)
                            block_s = join(block_s, entry if m[b + u] != 0 else zero)
                        for u in range(size):
                            block_n += one if m[b + u] != 0 else zero
                    else:
                        # sum and count in one type: their vectors then have one length
                        for u in range(size):
                            specified = m[b + u] != 0
                            block_s = join(block_s, term(decode(v[a + u]), zero, one) if specified else zero)
                            block_n += one if specified else zero
                    s = join(s, block_s)
                    n += int(block_n)
            if last == MEAN:
                out[task] = s / max(n, 1)
            elif last == ROOT:
                out[task] = np.sqrt(s)
            else:
                out[task] = s
            count[task] = min(n, most)

    @reordered
    def addcolumns(v: Any, m: Any, s: Any, n: Any, zero: Any, one: Any) -> None:
        for k in range(v.size):
            s[k] = join(s[k], term(decode(v[k]), zero, one) if m[k] != 0 else zero)
        for k in range(v.size):
            n[k] += np.uint8(m[k] != 0)

    @reordered
    def add_four(
        v: Any, w: Any, x: Any, y: Any, m: Any, n: Any, o: Any, p: Any, sums: Any, counts: Any, zero: Any, one: Any
    ) -> None:  # fmt: skip
        """Four rows of values and of a mask."""
        for k in range(v.size):
            first, second = term(decode(v[k]), zero, one), term(decode(w[k]), zero, one)
            third, fourth = term(decode(x[k]), zero, one), term(decode(y[k]), zero, one)
            two = join(first if m[k] != 0 else zero, second if n[k] != 0 else zero)
            more = join(third if o[k] != 0 else zero, fourth if p[k] != 0 else zero)
            sums[k] = join(sums[k], join(two, more))
        for k in range(v.size):
            counts[k] += np.uint8(m[k] != 0) + np.uint8(n[k] != 0) + np.uint8(o[k] != 0) + np.uint8(p[k] != 0)

    @reordered
    def add_whole(v: Any, v0: Any, step: Any, w: Any, sums: Any, zero: Any, one: Any) -> None:
        """Four complete rows."""
        a, b, c = v0 + step, v0 + step + step, v0 + step + step + step
        for u in range(w):
            two = join(term(decode(v[v0 + u]), zero, one), term(decode(v[a + u]), zero, one))
            more = join(term(decode(v[b + u]), zero, one), term(decode(v[c + u]), zero, one))
            sums[u] = join(sums[u], join(two, more))

    @reordered
    def columns(
        v: Any, m: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any,
        tile: int, zero: Any, one: Any, wide: Any, last: int, out: Any, count: Any, most: int, lo: int, hi: int,
    ) -> None:  # fmt: skip
        """Task t sums tile t % tiles of the columns, over one piece of the rows.

        Four rows at a time, as many columns as fit into the cache: sums are read and written once for the four, and the
        processor predicts the memory accesses, which it does not beyond a page (1024 columns at a time, row by
        row: 9.3 ms for 4096 x 4096 entries; now 4.1; a copy of as many bytes takes 8).
        """
        v, m, out, count = at(v), at(m), at(out), at(count)
        v_step, m_step, m_inner = steps[0], steps[1], inners[1]
        tiles = (width + tile - 1) // tile
        block_s, block_n = np.full(tile, zero), np.zeros(tile, np.uint8)
        s, n = np.full(tile, wide), np.zeros(tile, np.int64)
        for task in range(lo, hi):
            first = task % tiles * tile
            w = min(tile, width - first)
            rest, start = cut(task // tiles, pieces, piece)
            stop = min(start + piece, length)
            v_row, m_row = place(outer, rest, 0) + first, place(outer, rest, 1) + first * m_inner
            s[:w], n[:w] = wide, 0
            for block in range(start, stop, ROWS):
                block_s[:w], block_n[:w] = zero, 0
                whole, end = 0, min(block + ROWS, stop)
                fours = (end - block) // 4 if m_inner else 0
                for four in range(fours):
                    a, b = v_row + (block + 4 * four) * v_step, m_row + (block + 4 * four) * m_step
                    c, d, e = a + v_step, a + 2 * v_step, a + 3 * v_step
                    f, g, h = b + m_step, b + 2 * m_step, b + 3 * m_step
                    add_four(
                        v[a : a + w], v[c : c + w], v[d : d + w], v[e : e + w],
                        m[b : b + w], m[f : f + w], m[g : g + w], m[h : h + w], block_s, block_n, zero, one,
                    )  # fmt: skip
                r = block + 4 * fours
                while r < end:
                    v0, m0 = v_row + r * v_step, m_row + r * m_step
                    if m_inner:
                        addcolumns(v[v0 : v0 + w], m[m0 : m0 + w], block_s, block_n, zero, one)
                    elif r + 3 < end and m[m0] & m[m0 + m_step] & m[m0 + 2 * m_step] & m[m0 + 3 * m_step]:
                        whole += 4
                        add_whole(v, np.uint64(v0), np.uint64(v_step), np.uint64(w), block_s, zero, one)
                        r += 3
                    elif m[m0] != 0:
                        whole += 1  # a complete row: unsigned indices vectorise it
                        first_value = np.uint64(v0)
                        for u in range(np.uint64(w)):
                            block_s[u] = join(block_s[u], term(decode(v[first_value + u]), zero, one))
                    r += 1
                for k in range(w):
                    s[k] = join(s[k], block_s[k])
                    n[k] += block_n[k] + whole
            base = task // tiles * width + first
            for k in range(w):
                if last == MEAN:
                    out[base + k] = s[k] / max(n[k], 1)
                elif last == ROOT:
                    out[base + k] = np.sqrt(s[k])
                else:
                    out[base + k] = s[k]
                count[base + k] = min(n[k], most)

    return rows, columns


@formula
def _itself(x: Any, zero: Any, one: Any) -> Any:
    return x


_SUM = summing(_itself)
