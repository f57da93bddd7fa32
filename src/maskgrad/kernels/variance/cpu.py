r"""Variances of the specified entries: one pass over values and mask.

.. math:: Q = \sum_i m_i (x_i - c)^2, \quad S = \sum_i m_i (x_i - c), \qquad
          \sum_i m_i (x_i - \bar x)^2 = Q - S^2 / n, \quad \bar x = c + S / n

A block of entries is added in the type of the values (half precision in float32) as differences from a center c, the
mean of what was read before; two parts are then merged in float64 (Chan, Golub, LeVeque: Updating formulae and a
pairwise algorithm for computing sample variances, 1979). The difference of two near numbers is exact, so a large mean
costs no digits. The first center is the mean of a few entries. Where :math:`Q - S^2 / n` cancels, overflows or
underflows nevertheless (a jump after few entries), the block, which is still in the cache, is read again in float64.

Legend: v values, m mask; s, q, n sums of a block; *_all merged so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import variance as family
from maskgrad.kernels.cpu.compiler import at, cast, compiled, decode, flat, formula, reordered
from maskgrad.kernels.cpu.lines import line
from maskgrad.kernels.cpu.loops import MANY, cut, entrywise, place, scalars, stretch, wide, write
from maskgrad.kernels.cpu.partition import cut_of
from maskgrad.kernels.cpu.threads import run

BLOCK = 1024  # entries of a row added in their own type
TILE = 1024  # columns reduced together
FEW = 64  # entries of a row that give a first center
ROWS = 64  # rows of a block of columns (their number must fit into uint8)
#: Squares outside these bounds are near the limits of a type: they are added in float64.
BOUNDS = {torch.float32: (1e-30, 1e36), torch.float64: (1e-290, 1e305)}


def masked_variance(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, correction: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    number = wide(values)
    values, mask, part, _ = cut_of(values, mask, dim, TILE, counts=False)
    total = number if part.whole else torch.float64
    variance, mean, count = (part.empty(t, keepdim) for t in (total, total, torch.int64))
    run(
        _columns if part.inner else _rows, flat(values), flat(mask), *part.geometry, *scalars(values),
        *BOUNDS[number], part.whole, float(correction), flat(variance), flat(mean), flat(count),
        tasks=part.tasks, elements=values.numel(),
    )  # fmt: skip
    if part.is_direct:
        return variance, mean, count
    if not part.whole:
        (variance, extra), (mean, _), (count, _) = (part.split(x) for x in (variance, mean, count))
        variance, mean, count = _merged(variance, mean, count, extra, correction)
    variance, mean = (part.placed(x, keepdim).to(number) for x in (variance, mean))
    return variance, mean, part.placed(count, keepdim)


def masked_variance_backward(
    grad: Tensor, values: Tensor, mask: Tensor, mean: Tensor, count: Tensor, dim: Sequence[int], correction: float
) -> Tensor:  # fmt: skip
    if values.numel() < MANY:
        return write(_SLOPE, values, None, mask, mean, grad, count, numbers=(2, correction))
    found = line(values, mask, mean, grad * 2 / family.degrees(count, correction, grad.dtype))
    return family.without_estimates_of_few(found, count > max(correction, 0))


@formula
def _slope(x: Any, y: Any, mean: Any, grad: Any, count: Any, d: Any, n: Any) -> Any:
    enough = count > max(n[3], n[0])
    return (x - mean) * (grad * n[2] / (cast(count, grad) - n[3])) if enough else n[0]


_SLOPE = entrywise(_slope)


def _merged(
    squares: Tensor, mean: Tensor, count: Tensor, extra: list[int], correction: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the moments of the parts of one reduction, in float64."""
    total = count.sum(extra, keepdim=True)
    center = (mean * count).sum(extra, keepdim=True) / total.clamp(min=1)
    apart = torch.where(count > 0, mean - center, 0)
    squares = (squares + count * apart * apart).sum(extra)
    total, center = total.squeeze(extra), center.squeeze(extra)
    return squares / torch.where(total > max(correction, 0), total.double() - correction, 1), center, total


@reordered
def _add_block(v: Any, m: Any, center: Any, zero: Any, one: Any) -> Any:
    s, q, n = zero, zero, zero
    for r in range(v.size):  # all in one type: the loop then has vectors of one length
        specified = m[r] != 0
        d = decode(v[r]) - center if specified else zero
        s += d
        q += d * d
        n += one if specified else zero
    return s, q, n


@compiled
def _add_exactly(v: Any, m: Any, first: int, step: int, m_first: int, m_step: int, size: int) -> Any:
    """Mean, squares and count of a block, in float64, in two passes."""
    s, n = 0.0, 0
    for r in range(size):
        if m[m_first + r * m_step] != 0:
            s += np.float64(decode(v[first + r * step]))
            n += 1
    if n == 0:
        return 0.0, 0.0, 0
    mean, q, rest = s / n, 0.0, 0.0
    for r in range(size):
        if m[m_first + r * m_step] != 0:
            d = np.float64(decode(v[first + r * step])) - mean
            q += d * d
            rest += d
    return (mean + rest / n if q < np.inf else mean), (q - rest * rest / n if q < np.inf else q), n


@compiled
def _merge(mean_all: float, q_all: float, n_all: int, mean: float, q: float, n: int) -> Any:
    """Mean and squares of two parts, of which the second has entries."""
    part = n / (n_all + n)
    apart = mean - mean_all
    # the difference to an infinite mean is useless
    middle = mean_all + apart * part if np.isfinite(apart) else mean_all * (1 - part) + mean * part
    return (middle if n_all else mean), q_all + q + apart * apart * (n_all * part)


@reordered
def _rows(
    v: Any, m: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any, zero: Any,
    one: Any, least: float, most: float, done: bool, correction: float, variance: Any, mean: Any, count: Any, lo: int,
    hi: int,
) -> None:  # fmt: skip
    """Task t reduces piece t % pieces of row t // pieces. The step of values is 1; for the mask see :func:`stretch`."""
    v, m, variance, mean, count = at(v), at(m), at(variance), at(mean), at(count)
    m_step, center = steps[1], np.full(1, zero)
    complete = np.ones(BLOCK, np.uint8)
    for task in range(lo, hi):
        row, start = cut(task, pieces, piece)
        stop = min(start + piece, length)
        v_row, m_row = place(outer, row, 0), place(outer, row, 1)
        mean_all, q_all, n_all, last = 0.0, 0.0, 0, start
        while last < stop:
            first = last
            last, there, m_first = stretch(m, m_row, first, stop, m_step)
            if not there:
                continue
            for r in range(first, last, BLOCK):
                end = min(r + BLOCK, last)
                m0 = m_first + r - first if m_step > 0 else m_first
                specified = m[m0 : m0 + end - r] if m_step > 0 else complete[: end - r]
                if n_all:
                    guess = mean_all
                else:
                    few = min(end - r, FEW)
                    first_s, _, first_n = _add_block(
                        v[v_row + r : v_row + r + few], specified[:few], zero, zero, one
                    )
                    guess = float(first_s) / max(float(first_n), 1.0)
                center[0] = guess if np.isfinite(guess) else 0.0
                c = center[0]
                narrow_s, narrow_q, narrow_n = _add_block(v[v_row + r : v_row + end], specified, c, zero, one)
                n = int(narrow_n)
                if n == 0:
                    continue
                s, q = float(narrow_s), float(narrow_q)
                mean_block, q_block = c + s / n, max(q - s * s / n, 0.0)
                mean_new, q_new = _merge(mean_all, q_all, n_all, mean_block, q_block, n)
                # The error of q is relative to q: it must not be much larger than the result.
                inside = least < q < most and q <= 4 * q_new
                if not inside and not (q == 0 and s == 0):
                    mean_block, q_block, n = _add_exactly(v, m, v_row + r, 1, m0, max(m_step, 0), end - r)
                    mean_new, q_new = _merge(mean_all, q_all, n_all, mean_block, q_block, n)
                mean_all, q_all = mean_new, q_new
                n_all += n
        if done and n_all > max(correction, 0.0):
            q_all /= n_all - correction
        variance[task], mean[task], count[task] = q_all, mean_all, n_all


@reordered
def _add_columns(v: Any, m: Any, c: Any, s: Any, q: Any, n: Any, zero: Any) -> None:
    for k in range(v.size):
        d = decode(v[k]) - c[k] if m[k] != 0 else zero
        s[k] += d
        q[k] += d * d
    for k in range(v.size):
        n[k] += np.uint8(m[k] != 0)


@reordered
def _sum_columns(v: Any, m: Any, s: Any, n: Any, zero: Any) -> None:
    for k in range(v.size):
        s[k] += decode(v[k]) if m[k] != 0 else zero
    for k in range(v.size):
        n[k] += np.uint8(m[k] != 0)


@compiled
def _merge_columns(
    c: Any, s: Any, q: Any, n: Any, mean_all: Any, q_all: Any, n_all: Any, mean_new: Any, q_new: Any, odd: Any,
    least: float, most: float,
) -> bool:  # fmt: skip
    """The loop over blocks in ``_rows`` without branches; returns whether a column must be added exactly."""
    for k in range(c.size):
        number = np.float64(n[k])
        before = np.float64(n_all[k])
        s_block, q_block = np.float64(s[k]), np.float64(q[k])
        mean = np.float64(c[k]) + s_block / max(number, 1.0)
        left = q_block - s_block * s_block / max(number, 1.0)
        left = np.float64(0) if left < 0 else left
        part = number / max(before + number, 1.0)
        apart = mean - mean_all[k]
        after = q_all[k] + left + apart * apart * (before * part)
        mean_new[k] = mean_all[k] + apart * part
        q_new[k] = after
        inside = (q_block > least) & (q_block < most) & (q_block <= 4 * after) & (abs(apart) < np.inf)
        fine = inside | ((q_block == 0) & (s_block == 0) & (abs(apart) < np.inf))
        odd[k] = 0 if fine else 1
    return bool(odd.any())


@reordered
def _columns(
    v: Any, m: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any, zero: Any,
    one: Any, least: float, most: float, done: bool, correction: float, variance: Any, mean: Any, count: Any, lo: int,
    hi: int,
) -> None:  # fmt: skip
    """Task t reduces tile t % tiles of the columns, over one piece of the rows."""
    v, m, variance, mean, count = at(v), at(m), at(variance), at(mean), at(count)
    v_step, m_step, m_inner = steps[0], steps[1], inners[1]
    tiles = (width + TILE - 1) // TILE
    all_c, all_s, all_q = np.full(TILE, zero), np.full(TILE, zero), np.full(TILE, zero)
    all_n = np.zeros(TILE, np.uint8)
    all_mean, all_squares, all_count = np.zeros(TILE), np.zeros(TILE), np.zeros(TILE, np.int64)
    all_mean_new, all_squares_new, all_odd = np.zeros(TILE), np.zeros(TILE), np.zeros(TILE, np.uint8)
    complete = np.ones(TILE, np.uint8)
    for task in range(lo, hi):
        first = task % tiles * TILE
        w = min(TILE, width - first)
        rest, start = cut(task // tiles, pieces, piece)
        stop = min(start + piece, length)
        v_row, m_row = place(outer, rest, 0) + first, place(outer, rest, 1) + first * m_inner
        c, s, q, n = all_c[:w], all_s[:w], all_q[:w], all_n[:w]
        mean_all, q_all, n_all = all_mean[:w], all_squares[:w], all_count[:w]
        mean_new, q_new, odd = all_mean_new[:w], all_squares_new[:w], all_odd[:w]
        mean_all[:], q_all[:], n_all[:] = 0, 0, 0
        for block in range(start, stop, ROWS):
            end = min(block + ROWS, stop)
            if block == start:  # a first center: the mean of a few rows
                s[:], n[:] = zero, 0
                for r in range(block, min(block + 8, end)):
                    v0, m0 = v_row + r * v_step, m_row + r * m_step
                    if m_inner or m[m0] != 0:
                        _sum_columns(v[v0 : v0 + w], m[m0 : m0 + w] if m_inner else complete[:w], s, n, zero)
                for k in range(w):
                    guess = s[k] / max(n[k], 1)
                    c[k] = guess if np.isfinite(guess) else zero
            else:
                for k in range(w):
                    c[k] = mean_all[k] if np.isfinite(mean_all[k]) else 0.0
            s[:], q[:], n[:] = zero, zero, 0
            for r in range(block, end):
                v0, m0 = v_row + r * v_step, m_row + r * m_step
                if m_inner or m[m0] != 0:
                    _add_columns(
                        v[v0 : v0 + w], m[m0 : m0 + w] if m_inner else complete[:w], c, s, q, n, zero
                    )
            if _merge_columns(c, s, q, n, mean_all, q_all, n_all, mean_new, q_new, odd, least, most):
                for k in range(w):
                    if odd[k] and n[k]:
                        mean_block, q_block, exact_n = _add_exactly(
                            v, m, v_row + k + block * v_step, v_step, m_row + k * m_inner + block * m_step, m_step,
                            end - block,
                        )  # fmt: skip
                        mean_new[k], q_new[k] = _merge(
                            mean_all[k], q_all[k], n_all[k], mean_block, q_block, exact_n
                        )
            for k in range(w):
                if n[k]:
                    mean_all[k], q_all[k] = mean_new[k], q_new[k]
                n_all[k] += n[k]
        base = task // tiles * width + first
        for k in range(w):
            if done and n_all[k] > max(correction, 0.0):
                variance[base + k] = q_all[k] / (n_all[k] - correction)
            else:
                variance[base + k] = q_all[k]
            mean[base + k], count[base + k] = mean_all[k], n_all[k]
