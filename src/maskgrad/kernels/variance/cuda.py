r"""Variance, mean and number of the specified entries, in one pass of which no part cancels.

.. math:: \bar x = c + \frac{1}{n} \sum_i m_i (x_i - c), \qquad
          v = \frac{\sum_i m_i (x_i - c)^2 - n (\bar x - c)^2}{n - \text{correction}}

with :math:`c` a specified entry of the slice, so that the terms are of the size of the spread and not of the mean, and
all sums in float64. Long reductions are cut into pieces; a piece leaves its number, its mean and its squares, which
add up by the rule of Chan, Golub and LeVeque (1979).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels import variance as family
from maskgrad.kernels.cuda.compiler import compiled, precision
from maskgrad.kernels.cuda.tiles import entrywise, place, reduction, restored, table, tile, tile_place
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.segments.cuda import merged, places_of, walk_segments


def masked_variance(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, correction: float
) -> tuple[Tensor, Tensor, Tensor]:
    squares, mean, count = central_squares(values, mask, dim, keepdim)
    variance = squares / torch.where(count > max(correction, 0), count - correction, 1)
    dtype = torch.float32 if values.dtype in HALVES else values.dtype
    return variance.to(dtype), mean.to(dtype), count


def central_squares(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, centered: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of the squared distances from the mean (from 0 unless ``centered``), the mean (or 0), and the number.

    The first two are float64.
    """
    view = table((values, mask), dim)
    pieces = view.tile.pieces
    size = view.kept.number * pieces
    squares, mean = (torch.empty(size, dtype=torch.float64, device=values.device) for _ in range(2))
    count = torch.empty(size, dtype=torch.int64, device=values.device)
    reduction(
        _moments, view, (values.detach(), mask.view(torch.int8)), (squares, mean, count), CENTERED=centered,
        ACC=precision(values.dtype),
    )  # fmt: skip
    if pieces > 1:
        squares, mean, count = _joined(*(x.view(-1, pieces) for x in (squares, mean, count)))
    return restored(squares, view, keepdim), restored(mean, view, keepdim), restored(count, view, keepdim)


def _joined(squares: Tensor, mean: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The moments of slices from those of their pieces, (slices, pieces) each."""
    number = count.sum(1, keepdim=True)
    whole = (mean * count).sum(1, keepdim=True) / number.clamp(min=1)
    apart = torch.where(count > 0, mean - whole, 0)
    return (squares + count * apart * apart).sum(1), whole.squeeze(1), number.squeeze(1)


def masked_variance_backward(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    mean: Tensor,
    count: Tensor,
    dim: Sequence[int],
    correction: float,
) -> Tensor:
    out = torch.empty_like(values, requires_grad=False)
    enough = count > max(correction, 0)
    share = 2 * grad.detach() / torch.where(enough, count.to(grad.dtype) - correction, 1)
    share, mean = (x.expand(values.shape) for x in (share, mean.detach()))
    entrywise(
        _backward, out, values.detach(), share, mean, mask.view(torch.int8), ACC=precision(values.dtype)
    )
    return family.without_estimates_of_few(out, enough)


@compiled
def moments_of(
    values: tl.tensor, mask: tl.tensor, v_row: tl.tensor, m_row: tl.tensor, inside_row: tl.tensor, start: tl.tensor,
    stop: tl.tensor, sizes: tl.tensor, v_steps: tl.tensor, m_steps: tl.tensor, CENTERED: tl.constexpr,
    ACC: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """For each kept entry: how many are specified, their mean, and their squares, in float64.

    Without ``CENTERED`` the mean counts as 0.
    """
    # Each thread measures from the first specified entry that it meets.
    origin = tl.zeros((KEPT, REDUCED), ACC)
    total = tl.zeros((KEPT, REDUCED), ACC)
    square = tl.zeros((KEPT, REDUCED), ACC)
    plain = tl.zeros((KEPT, REDUCED), ACC)
    number = tl.zeros((KEPT, REDUCED), tl.int32)
    for first in range(start, stop, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < stop)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        v = tl.load(values + v_row + place(r, sizes, v_steps)[None, :], mask=inside, other=0).to(ACC)
        if CENTERED:
            origin = tl.where(m & (number == 0), v, origin)
            plain += tl.where(m, v, 0)
        d = tl.where(m, v - origin, 0)
        total += d
        square += d * d
        number += m.to(tl.int32)
    n = number.to(tl.float64)
    all_n = tl.sum(n, axis=1)
    if CENTERED:
        # Mean and squares of each thread, then those of all.
        some = tl.maximum(n, 1.0)
        own = total.to(tl.float64) / some
        spread = square.to(tl.float64) - n * own * own
        own = origin.to(tl.float64) + own
        whole = tl.sum(tl.where(number > 0, n * own, 0), axis=1) / tl.maximum(all_n, 1.0)
        apart = own - whole[:, None]
        joined = tl.sum(tl.where(number > 0, spread + n * apart * apart, 0), axis=1)
        # Infinite entries have no distance from each other, but a mean, which the derivative asks for.
        whole = tl.where(whole == whole, whole, tl.sum(plain.to(tl.float64), axis=1) / tl.maximum(all_n, 1.0))
    else:
        joined = tl.sum(square.to(tl.float64), axis=1)
        whole = all_n * 0
    return all_n, whole, tl.where(joined < 0, 0, joined)


@compiled
def _moments(
    values: tl.tensor, mask: tl.tensor, squares: tl.tensor, mean: tl.tensor, count: tl.tensor, kept: tl.tensor,
    kept_sizes: tl.tensor, v_kept: tl.tensor, m_kept: tl.tensor, reduced: tl.tensor, sizes: tl.tensor,
    v_steps: tl.tensor, m_steps: tl.tensor, piece: tl.tensor, pieces: tl.tensor, CENTERED: tl.constexpr,
    ACC: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    program = tl.program_id(0).to(INDEX)
    k = program // pieces * KEPT + tl.arange(0, KEPT)
    start = program % pieces * piece
    found = moments_of(
        values, mask, place(k, kept_sizes, v_kept)[:, None], place(k, kept_sizes, m_kept)[:, None],
        (k < kept)[:, None], start, tl.minimum(start + piece, reduced), sizes, v_steps, m_steps, CENTERED, ACC, KEPT,
        REDUCED,
    )  # fmt: skip
    to = k * pieces + program % pieces
    tl.store(squares + to, found[2], mask=k < kept)
    tl.store(mean + to, found[1], mask=k < kept)
    tl.store(count + to, found[0].to(tl.int64), mask=k < kept)


@compiled
def _backward(
    out: tl.tensor, values: tl.tensor, share: tl.tensor, mean: tl.tensor, mask: tl.tensor, rows: tl.tensor,
    row_sizes: tl.tensor, o_rows: tl.tensor, v_rows: tl.tensor, s_rows: tl.tensor, a_rows: tl.tensor,
    m_rows: tl.tensor, length: tl.tensor, sizes: tl.tensor, o_steps: tl.tensor, v_steps: tl.tensor,
    s_steps: tl.tensor, a_steps: tl.tensor, m_steps: tl.tensor, pieces: tl.tensor, ACC: tl.constexpr,
    INDEX: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    m_place = tile_place(row, row_sizes, m_rows, column, sizes, m_steps)
    v_place = tile_place(row, row_sizes, v_rows, column, sizes, v_steps)
    s_place = tile_place(row, row_sizes, s_rows, column, sizes, s_steps)
    a_place = tile_place(row, row_sizes, a_rows, column, sizes, a_steps)
    o_place = tile_place(row, row_sizes, o_rows, column, sizes, o_steps)
    m = tl.load(mask + m_place, mask=inside, other=0) != 0
    v = tl.load(values + v_place, mask=inside, other=0).to(ACC)
    a = tl.load(mean + a_place, mask=inside, other=0).to(ACC)
    s = tl.load(share + s_place, mask=inside, other=0).to(ACC)
    tl.store(out + o_place, tl.where(m, s * (v - a), 0).to(out.dtype.element_ty), mask=inside)


def segment_mean(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    # Where a segment is empty the kernel divides by 0.
    mean = merged(values, pointers, order, "mean", torch.promote_types(values.dtype, torch.float32))
    empty = (pointers.diff() == 0).view(-1, *(1,) * (values.ndim - 1))
    return mean.masked_fill_(empty, 0)


def segment_variance(
    values: Tensor, pointers: Tensor, order: Tensor | None, correction: float
) -> tuple[Tensor, Tensor]:
    values = values.detach().contiguous()
    half = values.dtype in HALVES
    squares, mean = (
        values.new_empty((len(pointers) - 1, *values.shape[1:]), dtype=torch.float64) for _ in range(2)
    )
    walk_segments(_segment_moments, values, pointers, order, len(values), (values, squares, mean))
    number = pointers.diff().double().view(-1, *(1,) * (values.ndim - 1))
    variance = squares / torch.where(number > max(correction, 0), number - correction, 1)
    return variance.to(torch.float32 if half else values.dtype), mean.float() if half else mean


def segment_variance_backward(
    grad: Tensor, values: Tensor, mean: Tensor, pointers: Tensor, order: Tensor | None, correction: float
) -> Tensor:
    values = values.detach().contiguous()
    out = torch.empty_like(values)
    number = pointers.diff().double().view(-1, *(1,) * (grad.ndim - 1))
    enough = number > max(correction, 0)
    share = (2 * grad.detach() / torch.where(enough, number - correction, 1)).contiguous()
    mean = mean.detach().double().contiguous()
    walk_segments(_segment_backward, values, pointers, order, len(values), (values, share, mean, out))
    return family.without_estimates_of_short(out, enough, pointers, order)


@compiled
def _segment_moments(
    values: tl.tensor, squares: tl.tensor, mean: tl.tensor, pointers: tl.tensor, order: tl.tensor, number: tl.tensor,
    width: tl.tensor, ORDERED: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    """The sum of squared deviations, and the mean; 0 of nothing."""
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    longest = tl.max(stop - start, axis=0)
    total = tl.zeros((LANES, STEP), tl.float64)
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        total += tl.load(values + place, mask=inside, other=0).to(tl.float64)
    average = tl.sum(total, axis=1) / tl.maximum(stop - start, 1).to(tl.float64)
    added = tl.zeros((LANES, STEP), tl.float64)
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        apart = tl.load(values + place, mask=inside, other=0).to(tl.float64) - average[:, None]
        added += tl.where(inside, apart * apart, 0)
    tl.store(mean + lane, average, mask=lane < number)
    tl.store(squares + lane, tl.sum(added, axis=1), mask=lane < number)


@compiled
def _segment_backward(
    values: tl.tensor, share: tl.tensor, mean: tl.tensor, out: tl.tensor, pointers: tl.tensor, order: tl.tensor,
    number: tl.tensor, width: tl.tensor, ORDERED: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr,
    STEP: tl.constexpr,
) -> None:  # fmt: skip
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    factor = tl.load(share + lane, mask=lane < number, other=0)[:, None]
    average = tl.load(mean + lane, mask=lane < number, other=0)[:, None]
    for done in range(0, tl.max(stop - start, axis=0), STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        v = tl.load(values + place, mask=inside, other=0).to(tl.float64)
        result = factor * (v - average)
        if out.dtype.element_ty == tl.float16 or out.dtype.element_ty == tl.bfloat16:
            result = result.to(tl.float32)
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)
