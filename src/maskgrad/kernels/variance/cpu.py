r"""Variances of the specified entries: one pass over values and mask.

.. math:: Q = \sum_i m_i (x_i - c)^2, \quad S = \sum_i m_i (x_i - c), \qquad
          \sum_i m_i (x_i - \bar x)^2 = Q - S^2 / n, \quad \bar x = c + S / n

A block of entries is added in the type of the values (halves in float32) as differences from a center c, the mean of
what was read before; two parts are then merged in float64 (Chan, Golub, LeVeque: Updating formulae and a pairwise
algorithm for computing sample variances, 1979). The difference of two near numbers is exact, so a large mean costs no
digits. The first center of a row is the mean of a few entries; those of columns are found by a pass of their own.
Where :math:`Q - S^2 / n` cancels, overflows or underflows nevertheless (a jump after few entries), the block, which
is still in the cache, is read again in float64.

Legend: v values, m mask; s, q, n sums of a block; *_all what has been merged so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import variance as family
from maskgrad.kernels.cpu.compiler import compiled, decode, flat, formula, reordered
from maskgrad.kernels.cpu.lines import line, pair_loops, sums_of_pairs
from maskgrad.kernels.cpu.loops import place, scalars, wide
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.partition import partition, walkable
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.reductions.cpu import mean_of

BLOCK = 1024  # entries of a row added in their own type
TILE = 1024  # columns reduced together
FEW = 64  # entries of a row that give a first center
#: Squares outside these bounds are near the ends of what a type can represent: they are added in float64.
BOUNDS = {torch.float32: (1e-30, 1e36), torch.float64: (1e-290, 1e305)}


def masked_variance(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, correction: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    values = values.detach()
    number = wide(values)
    part = partition((walkable(values), mask), dim, TILE)
    if part.inner:
        variance, mean, count = _of_columns(values, mask, dim, correction)
        if not keepdim:
            variance, mean, count = (x.squeeze(part.dims) for x in (variance, mean, count))
        return variance.to(number), mean.to(number), count
    total = number if part.whole else torch.float64
    variance, mean = empty(part.results, total), empty(part.results, total)
    count = empty(part.results, torch.int64)
    zero, one = scalars(values)
    run(
        _rows, *(flat(t) for t in part.tensors), *part.geometry(), zero, one, *BOUNDS[number], part.whole,
        float(correction), variance.numpy(), mean.numpy(), count.numpy(), tasks=part.tasks, elements=values.numel(),
    )  # fmt: skip
    if not part.whole:
        (variance, extra), (mean, _), (count, _) = (part.split(x) for x in (variance, mean, count))
        variance, mean, count = _merged(variance, mean, count, extra, correction)
    return (
        part.placed(variance, keepdim).to(number),
        part.placed(mean, keepdim).to(number),
        part.placed(count, keepdim),
    )


def _of_columns(
    values: Tensor, mask: Tensor, dim: Sequence[int], correction: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in two passes, of which the first finds the centers; dimensions are kept.

    One pass that moves the centers of many columns takes as long. Where squares leave the bounds, columns are copied
    to be rows.
    """
    center, count = mean_of(values, mask, dim)
    center = torch.where(center.isfinite(), center, 0).to(wide(values))
    n = count.clamp(min=1)
    rest, squares = sums_of_pairs(_POWERS, values, values, mask, center, dim)
    least, most = BOUNDS[wide(values)]
    fine = ((squares > least) & (squares < most)) | ((squares == 0) & (rest == 0))
    if not bool(fine.all()):
        dims = sorted(d % values.ndim for d in dim)
        order = [d for d in range(values.ndim) if d not in dims] + dims
        values, mask = (x.permute(order).contiguous() for x in (values, mask))
        last = range(values.ndim - len(dims), values.ndim)
        found = masked_variance(values, mask, last, False, correction)
        return found[0].view(count.shape), found[1].view(count.shape), found[2].view(count.shape)
    variance = (squares - rest * rest / n).clamp(min=0)
    variance = variance / torch.where(count > max(correction, 0), count - correction, 1)
    return variance, center + rest / n, count


@formula
def _powers(x: Any, y: Any, center: Any, n: Any) -> Any:
    return x - center, (x - center) * (x - center)


_POWERS = pair_loops(_powers)


def masked_variance_backward(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    mean: Tensor,
    count: Tensor,
    dim: Sequence[int],
    correction: float,
) -> Tensor:
    enough = count > max(correction, 0)
    factor = 2 / torch.where(enough, count.to(grad.dtype) - correction, 1)
    found = line(values, mask, mean, grad * factor)
    return family.without_estimates_of_few(found, enough)


def _merged(
    squares: Tensor, mean: Tensor, count: Tensor, extra: list[int], correction: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The moments of the parts of one reduction put together, in float64."""
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
    """Mean, squares and number of a block, in float64, in two passes."""
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
    # next to an infinite mean the difference is of no use
    middle = mean_all + apart * part if np.isfinite(apart) else mean_all * (1 - part) + mean * part
    return (middle if n_all else mean), q_all + q + apart * apart * (n_all * part)


@reordered
def _rows(
    v: Any, m: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any, zero: Any,
    one: Any, least: float, most: float, done: bool, correction: float, variance: Any, mean: Any, count: Any, lo: int,
    hi: int,
) -> None:  # fmt: skip
    """Task t reduces piece t % pieces of row t // pieces. Values lie in steps of 1, the mask in steps of 0 or 1."""
    m_step = steps[1]
    center = np.full(1, zero)
    complete = np.ones(BLOCK, np.uint8)
    for task in range(lo, hi):
        row, start = task // pieces, task % pieces * piece
        stop = min(start + piece, length)
        v_row, m_row = place(outer, row, 0), place(outer, row, 1)
        mean_all, q_all, n_all = 0.0, 0.0, 0
        if m_step == 0 and m[m_row] == 0:
            stop = start
        for r in range(start, stop, BLOCK):
            end = min(r + BLOCK, stop)
            specified = m[m_row + r : m_row + end] if m_step else complete[: end - r]
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
                mean_block, q_block, n = _add_exactly(v, m, v_row + r, 1, m_row + r * m_step, m_step, end - r)
                mean_new, q_new = _merge(mean_all, q_all, n_all, mean_block, q_block, n)
            mean_all, q_all = mean_new, q_new
            n_all += n
        if done and n_all > max(correction, 0.0):
            q_all /= n_all - correction
        variance[task], mean[task], count[task] = q_all, mean_all, n_all
