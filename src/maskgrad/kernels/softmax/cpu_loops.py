r"""The loops of ``softmax.py``.

Rows are read in blocks that stay in the first-level cache: the largest entry of a block, then its exponentials
relative to the largest entry so far; when that grows from M to M', the sum so far is multiplied by exp(M - M'). So one
pass over memory gives :math:`M = \max x_i` and :math:`s = \sum e^{x_i - M}` of a row of any length. Where M is
not finite, exponentials are taken of the entries themselves, and the end decides by M what the result is.

A mask that is constant along the inner axis has step 0: such a block is skipped, or read with ``ones`` for a mask.
Names: v values, m mask, g gradient, y softmax; T their type, float32 for halves.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from maskgrad.kernels.cpu.compiler import compiled, decode, reordered
from maskgrad.kernels.cpu.floating import encode, exponential, ordered, unordered

__all__ = [
    "LOGARITHM",
    "LOGSUMEXP",
    "PARTS",
    "SOFTMAX",
    "TILE",
    "backward_columns",
    "backward_rows",
    "backward_write",
    "columns",
    "rows",
    "write",
]

BLOCK = 1024  # entries of a row treated together
TILE = 512  # columns treated together
ROWS = 16  # rows of a block of columns

#: What becomes of the two statistics of a row: ``PARTS`` leaves them to be merged, ``LOGSUMEXP`` makes one number of
#: them, the others prepare (or do) the writing of the result, exp(x - first) * second or x - first - second.
SOFTMAX, LOGARITHM, LOGSUMEXP, PARTS = 0, 1, 2, 3


@reordered
def _largest(v: Any, m: Any, least: Any) -> Any:
    best = least
    for r in range(v.size):
        key = ordered(decode(v[r]), 0)
        best = max(best, key if m[r] != 0 else least)
    return best


@reordered
def _add_powers(v: Any, m: Any, shift: Any, zero: Any) -> Any:
    total = zero
    for r in range(v.size):
        power = exponential(decode(v[r]) - shift)
        total += power if m[r] != 0 else zero
    return total


@compiled
def _finish(mode: int, top: float, total: float) -> Any:
    """From the largest entry and the sum of exponentials to what ``mode`` asks for."""
    if mode == PARTS:
        return top, total
    finite = abs(top) < np.inf
    if mode == LOGSUMEXP:
        return (top + math.log(total) if finite else top), total
    if not finite:  # inf - inf, as in torch
        return 0.0, np.nan
    return top, (1 / total if mode == SOFTMAX else math.log(total))


@compiled
def _place(outer: Any, row: int, tensor: int) -> int:
    """Where row ``row`` of a tensor begins."""
    start = 0
    for axis in range(outer.shape[0] - 1, -1, -1):
        size = outer[axis, 0]
        start += row % size * outer[axis, 1 + tensor]
        row //= size
    return start


@compiled
def _write(out: Any, v: Any, m: Any, first: Any, second: Any, logarithm: bool, nothing: Any) -> None:
    if logarithm:
        for k in range(out.size):
            out[k] = encode(decode(v[k]) - first - second if m[k] != 0 else nothing, out[k])
    else:
        for k in range(out.size):
            out[k] = encode(exponential(decode(v[k]) - first) * second if m[k] != 0 else nothing, out[k])


@compiled
def _write_columns(out: Any, v: Any, m: Any, first: Any, second: Any, logarithm: bool, nothing: Any) -> None:
    if logarithm:
        for k in range(out.size):
            out[k] = encode(decode(v[k]) - first[k] - second[k] if m[k] != 0 else nothing, out[k])
    else:
        for k in range(out.size):
            out[k] = encode(
                exponential(decode(v[k]) - first[k]) * second[k] if m[k] != 0 else nothing, out[k]
            )


@reordered
def rows(
    v: Any, m: Any, out: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any,
    mode: int, zero: Any, least: Any, nothing: Any, first: Any, second: Any, seen: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t treats piece t % pieces of row t // pieces; a whole row, if ``mode`` says so, is written at once."""
    ones = np.ones(BLOCK, np.uint8)
    for task in range(lo, hi):
        row, start = task // pieces, task % pieces * piece
        stop = min(start + piece, length)
        v_row, m_row = _place(outer, row, 0), _place(outer, row, 1)
        best, shift, total = least, zero, 0.0
        if steps[1] or m[m_row] != 0:
            for r in range(start, stop, BLOCK):
                end = min(r + BLOCK, stop)
                mask = m[m_row + r : m_row + end] if steps[1] else ones[: end - r]
                block = v[v_row + r : v_row + end]
                key = _largest(block, mask, least)
                if key > best:
                    best, before = key, shift
                    peak = unordered(best)
                    shift = peak if abs(peak) < np.inf else zero
                    if total != 0:
                        total *= math.exp(np.float64(before) - np.float64(shift))
                if best > least:
                    total += _add_powers(block, mask, shift, zero)
        seen[task] = best > least
        top = unordered(best) if best > least else np.float64(-np.inf)
        first[task], second[task] = _finish(mode, top, total)
        if mode in (SOFTMAX, LOGARITHM):
            o_row, a, b = _place(outer, row, 2), first[task], second[task]
            for r in range(start, stop, BLOCK):
                end = min(r + BLOCK, stop)
                written = out[o_row + r : o_row + end]
                if best == least:
                    written[:] = encode(nothing, out[0])
                else:
                    mask = m[m_row + r : m_row + end] if steps[1] else ones[: end - r]
                    _write(written, v[v_row + r : v_row + end], mask, a, b, mode == LOGARITHM, nothing)


@compiled
def _raise_columns(v: Any, m: Any, keys: Any) -> None:
    for k in range(v.size):
        key = ordered(decode(v[k]), 0)
        keys[k] = max(keys[k], key if m[k] != 0 else keys[k])


@compiled
def _shift_columns(keys: Any, shift: Any, total: Any, zero: Any) -> None:
    for k in range(keys.size):
        top = unordered(keys[k])
        new = top if abs(top) < np.inf else zero
        power = exponential(shift[k] - new)
        total[k] *= power if total[k] != 0 else zero
        shift[k] = new


@compiled
def _add_columns(v: Any, m: Any, shift: Any, sums: Any, zero: Any) -> None:
    for k in range(v.size):
        power = exponential(decode(v[k]) - shift[k])
        sums[k] += power if m[k] != 0 else zero


@compiled
def columns(
    v: Any, m: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any,
    mode: int, zero: Any, least: Any, first: Any, second: Any, seen: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t treats tile t % tiles of the columns, over one piece of the rows."""
    tiles = (width + TILE - 1) // TILE
    ones = np.ones(TILE, np.uint8)
    all_keys, all_shift = np.full(TILE, least), np.full(TILE, zero)
    all_sums, all_total = np.full(TILE, zero), np.zeros(TILE)
    for task in range(lo, hi):
        column = task % tiles * TILE
        w = min(TILE, width - column)
        row, start = task // tiles // pieces, task // tiles % pieces * piece
        stop = min(start + piece, length)
        v_row, m_row = _place(outer, row, 0) + column, _place(outer, row, 1) + column * inners[1]
        keys, shift, sums, total = all_keys[:w], all_shift[:w], all_sums[:w], all_total[:w]
        keys[:], shift[:], total[:] = least, zero, 0
        for block in range(start, stop, ROWS):
            end = min(block + ROWS, stop)
            for r in range(block, end):
                v0, m0 = v_row + r * steps[0], m_row + r * steps[1]
                if inners[1] or m[m0] != 0:
                    _raise_columns(v[v0 : v0 + w], m[m0 : m0 + w] if inners[1] else ones[:w], keys)
            _shift_columns(keys, shift, total, zero)
            sums[:] = zero
            for r in range(block, end):
                v0, m0 = v_row + r * steps[0], m_row + r * steps[1]
                if inners[1] or m[m0] != 0:
                    _add_columns(v[v0 : v0 + w], m[m0 : m0 + w] if inners[1] else ones[:w], shift, sums, zero)
            for k in range(w):
                total[k] += sums[k]
        base = task // tiles * width + column
        for k in range(w):
            seen[base + k] = keys[k] > least
            top = unordered(keys[k]) if keys[k] > least else np.float64(-np.inf)
            first[base + k], second[base + k] = _finish(mode, top, total[k])


@compiled
def write(
    out: Any, v: Any, m: Any, first: Any, second: Any, outer: Any, length: int, steps: Any, pieces: int, piece: int,
    logarithm: bool, nothing: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Write exp(v - first) * second, or v - first - second, where m holds. Task t: one piece of one row.

    ``first`` and ``second`` lie in memory alike, and so share a stride; that of ``v`` is 1.
    """
    ones = np.ones(BLOCK, np.uint8)
    for task in range(lo, hi):
        row, start = task // pieces, task % pieces * piece
        stop = min(start + piece, length)
        o_row, v_row, m_row = _place(outer, row, 0), _place(outer, row, 1), _place(outer, row, 2)
        a_row = _place(outer, row, 3)
        for r in range(start, stop, BLOCK):
            end = min(r + BLOCK, stop)
            written, m0 = out[o_row + r : o_row + end], m_row + r * steps[2]
            if steps[2] == 0 and m[m0] == 0:
                written[:] = encode(nothing, out[0])
                continue
            mask = m[m0 : m0 + end - r] if steps[2] else ones[: end - r]
            values = v[v_row + r : v_row + end]
            if steps[3] == 0:
                _write(written, values, mask, first[a_row], second[a_row], logarithm, nothing)
            else:
                a, b = first[a_row + r : a_row + end], second[a_row + r : a_row + end]
                _write_columns(written, values, mask, a, b, logarithm, nothing)


@reordered
def _dot(g: Any, y: Any, m: Any, logarithm: bool, zero: Any) -> Any:
    total = zero
    if logarithm:
        for r in range(g.size):
            total += decode(g[r]) if m[r] != 0 else zero
    else:
        for r in range(g.size):
            total += decode(g[r]) * decode(y[r]) if m[r] != 0 else zero
    return total


@compiled
def _write_gradient(out: Any, g: Any, y: Any, m: Any, dot: Any, logarithm: bool, zero: Any) -> None:
    if logarithm:
        for k in range(out.size):
            x = decode(g[k]) - exponential(decode(y[k])) * dot
            out[k] = encode(x if m[k] != 0 else zero, out[k])
    else:
        for k in range(out.size):
            x = decode(y[k]) * (decode(g[k]) - dot)
            out[k] = encode(x if m[k] != 0 else zero, out[k])


@compiled
def _write_gradient_columns(out: Any, g: Any, y: Any, m: Any, dot: Any, logarithm: bool, zero: Any) -> None:
    if logarithm:
        for k in range(out.size):
            x = decode(g[k]) - exponential(decode(y[k])) * dot[k]
            out[k] = encode(x if m[k] != 0 else zero, out[k])
    else:
        for k in range(out.size):
            x = decode(y[k]) * (decode(g[k]) - dot[k])
            out[k] = encode(x if m[k] != 0 else zero, out[k])


@compiled
def backward_rows(
    y: Any, m: Any, g: Any, out: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int,
    inners: Any, logarithm: bool, whole: bool, zero: Any, dots: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t: piece t % pieces of row t // pieces; a ``whole`` row is written at once."""
    ones = np.ones(BLOCK, np.uint8)
    for task in range(lo, hi):
        row, start = task // pieces, task % pieces * piece
        stop = min(start + piece, length)
        y_row, m_row, g_row = _place(outer, row, 0), _place(outer, row, 1), _place(outer, row, 2)
        o_row, total, present = _place(outer, row, 3), 0.0, steps[1] != 0 or m[m_row] != 0
        if present:
            for r in range(start, stop, BLOCK):
                end = min(r + BLOCK, stop)
                mask = m[m_row + r : m_row + end] if steps[1] else ones[: end - r]
                total += _dot(g[g_row + r : g_row + end], y[y_row + r : y_row + end], mask, logarithm, zero)
        dots[task] = total
        if whole:
            dot = dots[task]
            for r in range(start, stop, BLOCK):
                end = min(r + BLOCK, stop)
                written = out[o_row + r : o_row + end]
                if not present:
                    written[:] = 0
                    continue
                mask = m[m_row + r : m_row + end] if steps[1] else ones[: end - r]
                gradient, soft = g[g_row + r : g_row + end], y[y_row + r : y_row + end]
                _write_gradient(written, gradient, soft, mask, dot, logarithm, zero)


@compiled
def _add_dots(g: Any, y: Any, m: Any, sums: Any, logarithm: bool, zero: Any) -> None:
    if logarithm:
        for k in range(g.size):
            sums[k] += decode(g[k]) if m[k] != 0 else zero
    else:
        for k in range(g.size):
            sums[k] += decode(g[k]) * decode(y[k]) if m[k] != 0 else zero


@compiled
def backward_columns(
    y: Any, m: Any, g: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any,
    logarithm: bool, zero: Any, dots: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t: tile t % tiles of the columns, over one piece of the rows."""
    tiles = (width + TILE - 1) // TILE
    ones = np.ones(TILE, np.uint8)
    all_sums, all_total = np.full(TILE, zero), np.zeros(TILE)
    for task in range(lo, hi):
        column = task % tiles * TILE
        w = min(TILE, width - column)
        row, start = task // tiles // pieces, task // tiles % pieces * piece
        stop = min(start + piece, length)
        y_row, g_row = _place(outer, row, 0) + column, _place(outer, row, 2) + column
        m_row = _place(outer, row, 1) + column * inners[1]
        sums, total = all_sums[:w], all_total[:w]
        total[:] = 0
        for block in range(start, stop, ROWS):
            sums[:] = zero
            for r in range(block, min(block + ROWS, stop)):
                y0, m0, g0 = y_row + r * steps[0], m_row + r * steps[1], g_row + r * steps[2]
                if inners[1] or m[m0] != 0:
                    mask = m[m0 : m0 + w] if inners[1] else ones[:w]
                    _add_dots(g[g0 : g0 + w], y[y0 : y0 + w], mask, sums, logarithm, zero)
            for k in range(w):
                total[k] += sums[k]
        base = task // tiles * width + column
        for k in range(w):
            dots[base + k] = total[k]


@compiled
def backward_write(
    out: Any, g: Any, y: Any, m: Any, dots: Any, outer: Any, length: int, steps: Any, pieces: int, piece: int,
    logarithm: bool, zero: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Write the gradient when the dots of its columns, or of long rows, are known. Steps of g and y are 1."""
    ones = np.ones(BLOCK, np.uint8)
    for task in range(lo, hi):
        row, start = task // pieces, task % pieces * piece
        stop = min(start + piece, length)
        o_row, g_row, y_row = _place(outer, row, 0), _place(outer, row, 1), _place(outer, row, 2)
        m_row, d_row = _place(outer, row, 3), _place(outer, row, 4)
        for r in range(start, stop, BLOCK):
            end = min(r + BLOCK, stop)
            written, m0 = out[o_row + r : o_row + end], m_row + r * steps[3]
            if steps[3] == 0 and m[m0] == 0:
                written[:] = 0
                continue
            mask = m[m0 : m0 + end - r] if steps[3] else ones[: end - r]
            gradient, soft = g[g_row + r : g_row + end], y[y_row + r : y_row + end]
            if steps[4] == 0:
                _write_gradient(written, gradient, soft, mask, dots[d_row], logarithm, zero)
            else:
                dot = dots[d_row + r : d_row + end]
                _write_gradient_columns(written, gradient, soft, mask, dot, logarithm, zero)
