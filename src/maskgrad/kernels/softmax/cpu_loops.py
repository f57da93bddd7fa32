r"""The loops of ``cpu.py``.

Rows are read in blocks that stay in the first-level cache: the largest entry of a block, then its exponentials
relative to the largest entry so far; when that grows from M to M', the sum so far is multiplied by exp(M - M'). So one
pass over memory gives :math:`M = \max x_i` and :math:`s = \sum e^{x_i - M}` of a row of any length. Where M is
not finite, exponentials are taken of the entries themselves, and the end decides by M what the result is.

A mask that is constant along the inner axis has step 0: such a block is skipped, or read with ``ones`` for a mask.
Names: v values, m mask, g gradient, y softmax; T their type, float32 for half precision.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from maskgrad.kernels.cpu.compiler import at, compiled, decode, formula, reordered
from maskgrad.kernels.cpu.floating import encode, exponential, ordered, unordered
from maskgrad.kernels.cpu.lines import pair_loops
from maskgrad.kernels.cpu.loops import cut, entrywise, place

BLOCK = 1024  # entries of a row processed together
TILE = 512  # columns processed together
ROWS = 16  # rows of a block of columns

#: Use of the two statistics of a row: ``PARTS`` leaves them to be merged, ``LOGSUMEXP`` combines
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
def _add_powers(v: Any, m: Any, shift: Any, zero: Any, powers: Any) -> Any:
    total = zero
    for r in range(v.size):
        power = exponential(decode(v[r]) - shift)
        powers[r] = power
        total += power if m[r] != 0 else zero
    return total


@compiled
def _finish(mode: int, top: float, total: float) -> Any:
    """From the largest entry and the sum of exponentials to the result of ``mode``."""
    if mode == PARTS:
        return top, total
    finite = abs(top) < np.inf
    if mode == LOGSUMEXP:
        return (top + math.log(total) if finite else top), total
    if not finite:  # inf - inf, as in torch
        return 0.0, np.nan
    return top, (1 / total if mode == SOFTMAX else math.log(total))


@formula
def _power(x: Any, y: Any, first: Any, second: Any, c: Any, d: Any, n: Any) -> Any:
    return exponential(x - first) * second


@formula
def _difference(x: Any, y: Any, first: Any, second: Any, c: Any, d: Any, n: Any) -> Any:
    return x - first - second


@formula
def _gradient(soft: Any, grad: Any, dot: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    return soft * (grad - dot)


@formula
def _log_gradient(soft: Any, grad: Any, dot: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    return grad - exponential(soft) * dot


@formula
def _product(soft: Any, grad: Any, c: Any, n: Any) -> Any:
    return grad * soft, n[0]


@formula
def _alone(soft: Any, grad: Any, c: Any, n: Any) -> Any:
    return grad, n[0]


#: For the softmax and its logarithm: loops that write the result, that write the gradient, and that compute its sums.
WRITE = (entrywise(_power), entrywise(_difference))
GRADIENTS = (entrywise(_gradient), entrywise(_log_gradient))
DOTS = (pair_loops(_product), pair_loops(_alone))


@compiled
def _write(out: Any, v: Any, m: Any, first: Any, second: Any, logarithm: bool, nothing: Any) -> None:
    if logarithm:
        for k in range(out.size):
            out[k] = encode(decode(v[k]) - first - second if m[k] != 0 else nothing, out[k])
    else:
        for k in range(out.size):
            out[k] = encode(exponential(decode(v[k]) - first) * second if m[k] != 0 else nothing, out[k])


@compiled
def _scale(out: Any, powers: Any, m: Any, factor: Any, nothing: Any) -> None:
    for k in range(out.size):
        out[k] = encode(powers[k] * factor if m[k] != 0 else nothing, out[k])


@reordered
def rows(
    v: Any, m: Any, out: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any,
    mode: int, zero: Any, least: Any, nothing: Any, first: Any, second: Any, seen: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t handles piece t % pieces of row t // pieces; depending on ``mode`` a whole row is written at once."""
    v, m, out, first, second, seen = at(v), at(m), at(out), at(first), at(second), at(seen)
    ones, powers, cast = np.ones(BLOCK, np.uint8), np.full(BLOCK, zero), np.full(2, zero)
    for task in range(lo, hi):
        row, start = cut(task, pieces, piece)
        stop = min(start + piece, length)
        v_row, m_row = place(outer, row, 0), place(outer, row, 1)
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
                    total += _add_powers(block, mask, shift, zero, powers)
        top = unordered(best) if best > least else np.float64(-np.inf)
        cast[0], cast[1] = _finish(mode, top, total)
        if mode not in (SOFTMAX, LOGARITHM):
            first[task], second[task], seen[task] = cast[0], cast[1], best > least
        else:
            o_row, a, b = place(outer, row, 2), cast[0], cast[1]
            for r in range(start, stop, BLOCK):
                end = min(r + BLOCK, stop)
                written = out[o_row + r : o_row + end]
                if best == least:
                    written[:] = encode(nothing, out[0])
                else:
                    mask = m[m_row + r : m_row + end] if steps[1] else ones[: end - r]
                    if mode == SOFTMAX and length <= BLOCK:
                        _scale(written, powers, mask, b, nothing)
                        continue
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
    """Task t handles tile t % tiles of the columns, over one piece of the rows."""
    v, m, first, second, seen = at(v), at(m), at(first), at(second), at(seen)
    tiles = (width + TILE - 1) // TILE
    ones = np.ones(TILE, np.uint8)
    all_keys, all_shift = np.full(TILE, least), np.full(TILE, zero)
    all_sums, all_total = np.full(TILE, zero), np.zeros(TILE)
    for task in range(lo, hi):
        column = task % tiles * TILE
        w = min(TILE, width - column)
        row, start = cut(task // tiles, pieces, piece)
        stop = min(start + piece, length)
        v_row, m_row = place(outer, row, 0) + column, place(outer, row, 1) + column * inners[1]
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
def backward_rows(
    y: Any, m: Any, g: Any, out: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int,
    inners: Any, logarithm: bool, zero: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t writes row t, which is whole."""
    y, m, g, out = at(y), at(m), at(g), at(out)
    ones, cast = np.ones(BLOCK, np.uint8), np.full(1, zero)
    for row in range(lo, hi):
        y_row, m_row, g_row = place(outer, row, 0), place(outer, row, 1), place(outer, row, 2)
        o_row = place(outer, row, 3)
        if steps[1] == 0 and m[m_row] == 0:
            out[o_row : o_row + length] = 0
            continue
        total = 0.0
        for r in range(0, length, BLOCK):
            end = min(r + BLOCK, length)
            mask = m[m_row + r : m_row + end] if steps[1] else ones[: end - r]
            total += _dot(g[g_row + r : g_row + end], y[y_row + r : y_row + end], mask, logarithm, zero)
        cast[0] = total
        for r in range(0, length, BLOCK):
            end = min(r + BLOCK, length)
            mask = m[m_row + r : m_row + end] if steps[1] else ones[: end - r]
            gradient, soft = g[g_row + r : g_row + end], y[y_row + r : y_row + end]
            _write_gradient(out[o_row + r : o_row + end], gradient, soft, mask, cast[0], logarithm, zero)
