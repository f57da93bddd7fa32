"""Extrema of the specified entries, ties, and the position of the first: one pass over values and mask.

Each thread keeps the best entry so far and the number of ties; NaN wins, as in torch. An empty slice gives
the value that never wins, position 0. That value is the constant of the kernels, and its sign says whether the
largest or the smallest is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.cuda.loops import Accumulator, reduce, write
from maskgrad.kernels.cuda.tiles import restored
from maskgrad.kernels.extrema import lowest
from maskgrad.kernels.segments import widened


def masked_extremum(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, largest: bool, counts: bool = True
) -> tuple[Tensor, Tensor]:
    source, neutral = readable(values, largest)
    (parts, ties), view = reduce(EXTREMUM, mask, (source,), dim, (source.dtype, torch.int64), kind=neutral)
    best = parts.amax(1, keepdim=True) if largest else parts.amin(1, keepdim=True)
    count = torch.where((parts == best) | ((parts != parts) & (best != best)), ties, 0).sum(1)
    found = count if counts else count > 0
    return restored(best.to(values.dtype), view, keepdim), restored(found, view, keepdim)


def masked_extremum_backward(
    grad: Tensor, values: Tensor, best: Tensor, ties: Tensor, mask: Tensor
) -> Tensor:
    out = torch.empty_like(values, requires_grad=False)
    share = widened(grad) / ties.clamp(min=1)
    return write(_spread, out, mask, values, *(x.to(values.dtype) for x in (share, best)))


def masked_position(
    values: Tensor, mask: Tensor, dim: int, keepdim: bool, largest: bool
) -> tuple[Tensor, Tensor]:
    source, neutral = readable(values, largest)
    results = (torch.int64, torch.bool)
    (position, present), view = reduce(_POSITION, mask, (source,), (dim,), results, kind=neutral, whole=True)
    return restored(position, view, keepdim), restored(present, view, keepdim)


def readable(values: Tensor, largest: bool) -> tuple[Tensor, float]:
    """Booleans as integers; and the value that never wins."""
    value = lowest(values.dtype, largest)
    source = values.detach()
    return source.view(torch.uint8) if values.dtype == torch.bool else source, (
        value if values.is_floating_point() else int(value)
    )


@compiled
def _spread(x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    v, share, best = x
    return tl.where(best != best, best, tl.where(v == best, share, 0))


@compiled
def _start(ROWS: tl.constexpr, COLUMNS: tl.constexpr, NEUTRAL: tl.constexpr, ACC: tl.constexpr) -> tl.tensor:
    """The best, how many equal it, and how many are NaN."""
    none = tl.zeros((ROWS, COLUMNS), tl.int32)
    return tl.full((ROWS, COLUMNS), NEUTRAL, ACC), none, none


@compiled
def _step(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, NEUTRAL: tl.constexpr
) -> tl.tensor:
    best, ties, missing = state
    v = x[0]
    better = there & (v > best) if NEUTRAL <= 0 else there & (v < best)
    ties = tl.where(better, 1, ties + (there & (v == best)).to(tl.int32))
    return tl.where(better, v, best), ties, missing + (there & (v != v)).to(tl.int32)


@compiled
def _finish(state: tl.tensor, n: tl.tensor, NEUTRAL: tl.constexpr) -> tl.tensor:
    best, ties, missing = state
    result = tl.max(best, axis=1) if NEUTRAL <= 0 else tl.min(best, axis=1)
    attained = tl.sum(tl.where(best == result[:, None], ties, 0).to(tl.int64), axis=1)
    if best.dtype.is_floating():
        nans = tl.sum(missing.to(tl.int64), axis=1)
        result = tl.where(nans > 0, float("nan"), result)
        attained = tl.where(nans > 0, nans, attained)
    return result, attained


@compiled
def _start_position(
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, NEUTRAL: tl.constexpr, ACC: tl.constexpr
) -> tl.tensor:
    """The best, its first position, and that of the first NaN; -1 for none."""
    nowhere = tl.full((ROWS, COLUMNS), -1, tl.int64)
    return tl.full((ROWS, COLUMNS), NEUTRAL, ACC), nowhere, nowhere


@compiled
def _step_position(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, NEUTRAL: tl.constexpr
) -> tl.tensor:
    """Each thread reads its entries in order, so the first of ties is kept."""
    best, place, missing = state
    v = x[0]
    better = there & (v > best) if NEUTRAL <= 0 else there & (v < best)
    better = better | (there & (v == best) & (place < 0))
    place = tl.where(better, at, place)
    return tl.where(better, v, best), place, tl.where(there & (v != v) & (missing < 0), at, missing)


@compiled
def _finish_position(state: tl.tensor, n: tl.tensor, NEUTRAL: tl.constexpr) -> tl.tensor:
    best, place, missing = state
    beyond = 1 << 62
    result = tl.max(best, axis=1) if NEUTRAL <= 0 else tl.min(best, axis=1)
    winner = tl.min(tl.where((best == result[:, None]) & (place >= 0), place, beyond), axis=1)
    nan = tl.min(tl.where(missing >= 0, missing, beyond), axis=1)
    winner = tl.where(nan < beyond, nan, winner)
    return tl.where(winner < beyond, winner, 0), winner < beyond


EXTREMUM = Accumulator(_start, _step, _finish)
_POSITION = Accumulator(_start_position, _step_position, _finish_position)
