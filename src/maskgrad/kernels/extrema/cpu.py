"""Extrema of the specified entries, number of ties, position of the first, and the gradient.

One pass over values and mask. Numbers are compared as integers (see ``ordered`` in ``floating.py``), a block or a row
of columns at a time; ties are counted only in a block that equals or beats the best so far, while
it is in the first-level cache. Names: v values, m mask; ``turn`` is 0 for the largest, -1 for the smallest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import extrema as family
from maskgrad.kernels.cpu.compiler import at, cast, compiled, decode, flat, formula
from maskgrad.kernels.cpu.floating import ordered, restored
from maskgrad.kernels.cpu.loops import MANY, cut, entrywise, place, stretch, write
from maskgrad.kernels.cpu.partition import Partition, cut_of
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.segments import widened

BLOCK = 1024  # entries of a row processed together
FEW = 8  # entries of a row, specified or not as a whole, that are compared one by one
TILE = 1024  # columns processed together

#: The second result of a loop: number of ties, presence of an entry, or position (-1: none). The fourth kind are the
#: position (0 if there is none) and, instead of the extremum, the presence.
TIES, PRESENCE, PLACE, PLACES = 0, 1, 2, 3
NARROW = (torch.int8, torch.int16)  # float16 is passed as int16


def masked_extremum(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, largest: bool, counts: bool = True
) -> tuple[Tensor, Tensor]:
    if values.ndim > 64:  # torch's bitmask of dimensions has 64 bits
        return family.masked_extremum.reference(values, mask, tuple(dim), keepdim, largest, counts)
    best, ties, parts = _reduce(values, mask, dim, keepdim, largest, TIES if counts else PRESENCE)
    if parts.is_direct:
        return best if best.dtype is values.dtype else best.to(values.dtype), ties
    if not parts.whole:
        split, merge = parts.split(best)
        best = split.amax(merge, keepdim=True) if largest else split.amin(merge, keepdim=True)
        same = (split == best) | ((split != split) & (best != best))
        number = parts.split(ties)[0]
        ties = torch.where(same, number, 0).sum(merge) if counts else number.any(tuple(merge))
        best = best.squeeze(tuple(merge))
    return parts.placed(best, keepdim).to(values.dtype), parts.placed(ties, keepdim)


def masked_position(
    values: Tensor, mask: Tensor, dim: int, keepdim: bool, largest: bool
) -> tuple[Tensor, Tensor]:
    best, index, parts = _reduce(values, mask, (dim,), keepdim, largest, PLACE)
    if parts.is_direct:
        return index, best
    if parts.whole:
        return parts.placed(index, keepdim), parts.placed(best, keepdim)
    split, merge = parts.split(best)
    best = split.amax(merge, keepdim=True) if largest else split.amin(merge, keepdim=True)
    index, nowhere = parts.split(index)[0], torch.iinfo(torch.int64).max
    if parts.joined > 1:
        place = torch.arange(parts.joined)[:, None]
        index = torch.where(index >= 0, index * parts.joined + place, -1)
    first = (index >= 0) & ((split == best) | (split != split))
    index = torch.where(first, index, nowhere).amin(merge)
    index = torch.where(index == nowhere, -1, index)
    index = parts.placed(index, keepdim)
    return index.clamp(min=0), index >= 0


def masked_extremum_backward(
    grad: Tensor, values: Tensor, best: Tensor, ties: Tensor, mask: Tensor
) -> Tensor:
    if values.numel() < MANY:
        return write(_SHARE, values, None, mask, best, grad, ties)
    return write(_SPREAD, values, None, mask, best, widened(grad) / ties.clamp(min=1))


@formula
def _spread(x: Any, y: Any, best: Any, share: Any, c: Any, d: Any, n: Any) -> Any:
    return (share if best == best else best) if (x == best) | (best != best) else n[0]


@formula
def _share(x: Any, y: Any, best: Any, grad: Any, ties: Any, d: Any, n: Any) -> Any:
    return _spread(x, y, best, grad / cast(max(ties, 1), grad), ties, d, n)


_SPREAD, _SHARE = entrywise(_spread), entrywise(_share)


def _reduce(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, largest: bool, kind: int
) -> tuple[Tensor, Tensor, Partition]:
    """The extremum of each piece, and the number of ties, the position of the first (-1: none), or if there is any."""
    lowest = family.lowest(values.dtype, largest)
    if values.dtype in NARROW:
        values = values.to(torch.int32)
    values, mask, parts, repeats = cut_of(values, mask, dim, TILE)
    kind = PLACES if kind == PLACE and parts.whole else kind
    best = parts.empty(torch.bool if kind == PLACES else values.dtype, keepdim)
    number = parts.empty(torch.bool if kind == PRESENCE else torch.int64, keepdim)
    wide: Any = np.int64 if values.dtype in (torch.float64, torch.int64) else np.int32
    turn = 0 if largest else -1
    floats = -0x7FF0000000000001 if values.dtype == torch.float64 else -0x7F800001
    start = floats if values.is_floating_point() else int(lowest) ^ turn  # the integer that never wins
    run(
        _columns if parts.inner else _rows, flat(values), flat(mask), *parts.geometry, wide(start),
        wide(turn), kind, flat(best), flat(number), tasks=parts.tasks, elements=values.numel(),
    )  # fmt: skip
    return best, number * repeats if kind == TIES and repeats > 1 else number, parts


@compiled
def _best(v: Any, m: Any, start: Any, turn: Any) -> Any:
    best = start
    for r in range(v.size):
        key = ordered(decode(v[r]), turn)
        best = max(best, key if m[r] != 0 else start)
    return best


@compiled
def _ties(v: Any, m: Any, best: Any, turn: Any) -> int:
    number = 0
    for r in range(v.size):
        number += m[r] != 0 and ordered(decode(v[r]), turn) == best
    return number


@compiled
def _there(m: Any) -> int:
    found = np.uint8(0)
    for r in range(m.size):
        found |= np.uint8(m[r] != 0)
    return int(found)


@compiled
def _first(v: Any, m: Any, best: Any, turn: Any) -> Any:
    """Return where ``best`` first occurs, ``BLOCK`` if nowhere; no early exit, which would not vectorise."""
    first = np.int32(BLOCK)
    for r in range(v.size):
        hit = (m[r] != 0) & (ordered(decode(v[r]), turn) == best)
        first = min(first, np.int32(r) if hit else np.int32(BLOCK))
    return first


@formula
def _of_few(v: Any, v0: Any, length: Any, start: Any, turn: Any) -> Any:
    """Extremum, ties and position of the first in a row of a few specified entries, without a branch."""
    best, ties, where = start, np.int64(0), np.int64(-1)
    for k in range(length):
        best = max(best, ordered(decode(v[v0 + k]), turn))
    for k in range(length):
        hit = np.int64(ordered(decode(v[v0 + k]), turn) == best)
        where += (np.int64(k) - where) * (hit & np.int64(ties == 0))
        ties += hit
    return best, ties, where


@compiled
def _rows(
    v: Any, m: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any, start: Any,
    turn: Any, kind: int, out: Any, number: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t handles piece t % pieces of row t // pieces; for the steps of the mask see :func:`stretch`."""
    v, m, out, number = at(v), at(m), at(out), at(number)
    ones = np.ones(BLOCK, np.uint8)
    for task in range(lo, hi):
        row, begin = cut(task, pieces, piece)
        stop = min(begin + piece, length)
        v_row, m_row = place(outer, row, 0), place(outer, row, 1)
        best, last = start, begin
        ties: Any = 0
        where: Any = -1
        is_short = length <= FEW and steps[1] == 0
        if is_short:
            last = stop
            if m[m_row] != 0:
                best, ties, where = _of_few(v, np.uint64(v_row), np.uint64(length), start, turn)
        while last < stop:
            first = last
            last, there, m_first = stretch(m, m_row, first, stop, steps[1])
            if not there:
                continue
            for r in range(first, last, BLOCK):
                end = min(r + BLOCK, last)
                m0 = m_first + r - first
                mask = m[m0 : m0 + end - r] if steps[1] > 0 else ones[: end - r]
                block = v[v_row + r : v_row + end]
                key = _best(block, mask, start, turn)
                if key > best:
                    best, ties, where = key, 0, r
                if kind == TIES:
                    if key == best:
                        ties += _ties(block, mask, best, turn)
                elif kind == PRESENCE:
                    ties = max(ties, _there(mask))
                elif key == start and where < 0 and _first(block, mask, best, turn) < BLOCK:
                    where = r
        if (
            kind >= PLACE and where >= 0 and not is_short
        ):  # so far, the block; one dimension is one row, never joined
            end = min(where + BLOCK, stop)
            mask = m[m_row + where : m_row + end] if steps[1] else ones[: end - where]
            where += _first(v[v_row + where : v_row + end], mask, best, turn)
        if kind == PLACES:
            out[task], number[task] = where >= 0, max(where, 0)
        else:
            out[task] = restored(best, turn, out[0])
            number[task] = where if kind == PLACE else min(ties, 1) if kind == PRESENCE else ties


@formula
def _tie_columns(v: Any, m: Any, v0: Any, m0: Any, w: Any, best: Any, ties: Any, turn: Any) -> None:
    for k in range(w):
        key, specified = ordered(decode(v[v0 + k]), turn), m[m0 + k] != 0
        new = 1 if key > best[k] else ties[k] + (key == best[k])
        ties[k] = new if specified else ties[k]
        best[k] = max(key, best[k]) if specified else best[k]


@formula
def _there_columns(v: Any, m: Any, v0: Any, m0: Any, w: Any, best: Any, there: Any, turn: Any) -> None:
    for k in range(w):
        specified = m[m0 + k] != 0
        there[k] |= specified
        best[k] = max(ordered(decode(v[v0 + k]), turn), best[k]) if specified else best[k]


@formula
def _first_columns(
    v: Any, m: Any, v0: Any, m0: Any, w: Any, best: Any, index: Any, turn: Any, r: Any
) -> None:
    for k in range(w):
        key = ordered(decode(v[v0 + k]), turn)
        wins = (m[m0 + k] != 0) & ((key > best[k]) | ((key == best[k]) & (index[k] < 0)))
        index[k] = r if wins else index[k]
        best[k] = key if wins else best[k]


@compiled
def _columns(
    v: Any, m: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any, start: Any,
    turn: Any, kind: int, out: Any, number: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t handles tile t % tiles of the columns, over one piece of the rows."""
    v, m, out, number = at(v), at(m), at(out), at(number)
    tiles = (width + TILE - 1) // TILE
    ones = np.ones(TILE, np.uint8)
    best, numbers = np.full(TILE, start), np.full(TILE, start)
    mask = m if inners[1] else ones
    for task in range(lo, hi):
        column = task % tiles * TILE
        w = np.uint64(min(TILE, width - column))
        row, begin = cut(task // tiles, pieces, piece)
        v_row, m_row = place(outer, row, 0) + column, place(outer, row, 1) + column * inners[1]
        for k in range(w):
            best[k] = start
            numbers[k] = -1 if kind >= PLACE else 0
        for r in range(begin, min(begin + piece, length)):
            v0, m_place = np.uint64(v_row + r * steps[0]), m_row + r * steps[1]
            if inners[1] or m[m_place] != 0:
                m0 = np.uint64(m_place if inners[1] else 0)
                if kind >= PLACE:
                    _first_columns(v, mask, v0, m0, w, best, numbers, turn, r)
                elif kind == PRESENCE:
                    _there_columns(v, mask, v0, m0, w, best, numbers, turn)
                else:
                    _tie_columns(v, mask, v0, m0, w, best, numbers, turn)
        base = np.uint64(task // tiles * width + column)
        for k in range(w):
            if kind == PLACES:
                out[base + k], number[base + k] = numbers[k] >= 0, max(numbers[k], 0)
            else:
                out[base + k] = restored(best[k], turn, out[0])
                number[base + k] = numbers[k]
