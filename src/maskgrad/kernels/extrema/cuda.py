"""Extrema of the specified entries, who attains them, and where the first is: one pass over values and mask.

Each thread keeps the best entry that it met and how many equal it; NaN wins, as in torch. The extremum of nothing is
the value that never wins, its position 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled, precision
from maskgrad.kernels.cuda.tiles import entrywise, place, reduction, restored, table, tile, tile_place
from maskgrad.kernels.extrema import lowest


def masked_extremum(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, largest: bool
) -> tuple[Tensor, Tensor]:
    source, bits = _readable(values), mask.view(torch.int8)
    view = table((source, bits), dim)
    pieces = view.tile.pieces
    best = torch.empty(view.kept.number * pieces, dtype=source.dtype, device=values.device)
    count = torch.empty(len(best), dtype=torch.int64, device=values.device)
    reduction(
        _extremum, view, (source, bits), (best, count), LARGEST=largest, NEUTRAL=_neutral(values.dtype, largest),
        FLOAT=values.is_floating_point(), ACC=precision(source.dtype),
    )  # fmt: skip
    if pieces > 1:
        parts, counts = best.view(-1, pieces), count.view(-1, pieces)
        best = parts.amax(1) if largest else parts.amin(1)
        attained = (parts == best[:, None]) | ((parts != parts) & (best != best)[:, None])
        count = torch.where(attained, counts, 0).sum(1)
    return restored(best.to(values.dtype), view, keepdim), restored(count, view, keepdim)


def masked_extremum_spread(share: Tensor, values: Tensor, best: Tensor, mask: Tensor) -> Tensor:
    out = torch.empty_like(values, requires_grad=False)
    share, best = (x.detach().to(values.dtype).expand(values.shape) for x in (share, best))
    entrywise(_spread, out, values.detach(), share, best, mask.view(torch.int8))
    return out


def masked_position(
    values: Tensor, mask: Tensor, dim: int, keepdim: bool, largest: bool
) -> tuple[Tensor, Tensor]:
    source, bits = _readable(values), mask.view(torch.int8)
    view = table((source, bits), (dim,), whole=True)
    position = torch.empty(view.kept.number, dtype=torch.int64, device=values.device)
    present = torch.empty(view.kept.number, dtype=torch.bool, device=values.device)
    reduction(
        _position, view, (source, bits), (position, present.view(torch.int8)), LARGEST=largest,
        NEUTRAL=_neutral(values.dtype, largest), ACC=precision(source.dtype),
    )  # fmt: skip
    return restored(position, view, keepdim), restored(present, view, keepdim)


def _neutral(dtype: torch.dtype, largest: bool) -> float | int:
    value = lowest(dtype, largest)
    return value if dtype.is_floating_point else int(value)


def _readable(values: Tensor) -> Tensor:
    """Booleans as integers."""
    values = values.detach()
    return values.view(torch.uint8) if values.dtype == torch.bool else values


@compiled
def _extremum(
    values: tl.tensor, mask: tl.tensor, out: tl.tensor, count: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor,
    v_kept: tl.tensor, m_kept: tl.tensor, reduced: tl.tensor, sizes: tl.tensor, v_steps: tl.tensor,
    m_steps: tl.tensor, piece: tl.tensor, pieces: tl.tensor, LARGEST: tl.constexpr, NEUTRAL: tl.constexpr,
    FLOAT: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    program = tl.program_id(0).to(INDEX)
    k = program // pieces * KEPT + tl.arange(0, KEPT)
    start = program % pieces * piece
    stop = tl.minimum(start + piece, reduced)
    v_row = place(k, kept_sizes, v_kept)[:, None]
    m_row = place(k, kept_sizes, m_kept)[:, None]
    best = tl.full((KEPT, REDUCED), NEUTRAL, ACC)
    ties = tl.zeros((KEPT, REDUCED), tl.int32)
    missing = tl.zeros((KEPT, REDUCED), tl.int32)
    for first in range(start, stop, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = (k < kept)[:, None] & (r < stop)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        v = tl.load(values + v_row + place(r, sizes, v_steps)[None, :], mask=inside, other=0).to(ACC)
        better = m & (v > best) if LARGEST else m & (v < best)
        ties = tl.where(better, 1, ties + (m & (v == best)).to(tl.int32))
        best = tl.where(better, v, best)
        missing += (m & (v != v)).to(tl.int32)
    result = tl.max(best, axis=1) if LARGEST else tl.min(best, axis=1)
    attained = tl.sum(tl.where(best == result[:, None], ties, 0).to(tl.int64), axis=1)
    if FLOAT:
        nans = tl.sum(missing.to(tl.int64), axis=1)
        result = tl.where(nans > 0, float("nan"), result)
        attained = tl.where(nans > 0, nans, attained)
    to = k * pieces + program % pieces
    tl.store(out + to, result.to(out.dtype.element_ty), mask=k < kept)
    tl.store(count + to, attained, mask=k < kept)


@compiled
def _position(
    values: tl.tensor, mask: tl.tensor, out: tl.tensor, present: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor,
    v_kept: tl.tensor, m_kept: tl.tensor, reduced: tl.tensor, sizes: tl.tensor, v_steps: tl.tensor,
    m_steps: tl.tensor, LARGEST: tl.constexpr, NEUTRAL: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr,
    KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    """Each thread meets its entries in their order, so the first of equals stays."""
    k = tl.program_id(0).to(INDEX) * KEPT + tl.arange(0, KEPT)
    v_row = place(k, kept_sizes, v_kept)[:, None]
    m_row = place(k, kept_sizes, m_kept)[:, None]
    best = tl.full((KEPT, REDUCED), NEUTRAL, ACC)
    nowhere = tl.zeros((KEPT, REDUCED), INDEX) + reduced
    at = nowhere
    missing = nowhere
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = (k < kept)[:, None] & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        v = tl.load(values + v_row + place(r, sizes, v_steps)[None, :], mask=inside, other=0).to(ACC)
        better = m & (v > best) if LARGEST else m & (v < best)
        better = better | (m & (v == best) & (at == reduced))
        here = nowhere - reduced + r[None, :].to(INDEX)
        at = tl.where(better, here, at)
        best = tl.where(better, v, best)
        missing = tl.where(m & (v != v) & (missing == reduced), here, missing)
    result = tl.max(best, axis=1) if LARGEST else tl.min(best, axis=1)
    winner = tl.min(tl.where(best == result[:, None], at, nowhere), axis=1)
    nan = tl.min(missing, axis=1)
    winner = tl.where(nan < reduced, nan, winner)
    tl.store(out + k, tl.where(winner < reduced, winner, 0).to(tl.int64), mask=k < kept)
    tl.store(present + k, (winner < reduced).to(tl.int8), mask=k < kept)


@compiled
def _spread(
    out: tl.tensor, values: tl.tensor, share: tl.tensor, best: tl.tensor, mask: tl.tensor, rows: tl.tensor,
    row_sizes: tl.tensor, o_rows: tl.tensor, v_rows: tl.tensor, s_rows: tl.tensor, b_rows: tl.tensor,
    m_rows: tl.tensor, length: tl.tensor, sizes: tl.tensor, o_steps: tl.tensor, v_steps: tl.tensor,
    s_steps: tl.tensor, b_steps: tl.tensor, m_steps: tl.tensor, pieces: tl.tensor, INDEX: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    m_place = tile_place(row, row_sizes, m_rows, column, sizes, m_steps)
    v_place = tile_place(row, row_sizes, v_rows, column, sizes, v_steps)
    s_place = tile_place(row, row_sizes, s_rows, column, sizes, s_steps)
    b_place = tile_place(row, row_sizes, b_rows, column, sizes, b_steps)
    o_place = tile_place(row, row_sizes, o_rows, column, sizes, o_steps)
    m = tl.load(mask + m_place, mask=inside, other=0) != 0
    v = tl.load(values + v_place, mask=inside, other=0)
    s = tl.load(share + s_place, mask=inside, other=0)
    b = tl.load(best + b_place, mask=inside, other=0)
    hit = m & ((v == b) | (b != b))
    tl.store(out + o_place, tl.where(hit, s, tl.zeros_like(s)), mask=inside)
