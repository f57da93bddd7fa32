"""Running sums: one pass over values and mask, from either end. Sums are kept in float64, as in ``torch.cumsum``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from maskgrad.kernels.cpu.compiler import at, compiled, decode, flat
from maskgrad.kernels.cpu.floating import encode
from maskgrad.kernels.cpu.loops import number, place
from maskgrad.kernels.cpu.partition import like, partition, walkable
from maskgrad.kernels.cpu.threads import run

TILE = 512  # columns summed together
NARROW = 6  # columns summed one after the other


def masked_cumsum(values: Tensor, mask: Tensor, dim: int, reverse: bool) -> Tensor:
    values = walkable(values.detach())
    out = like(values, values.dtype)
    tensors, parts = partition((values, mask, out), (dim,), TILE, light=None)
    if parts.inner is not None and parts.width <= NARROW:  # one column after the other, in registers
        parts = replace(parts, outer=[*parts.outer, parts.inner], inner=None)
    run(
        _rows if parts.inner is None else _columns, *[flat(x) for x in tensors], *parts.geometry, reverse,
        number(values, 0), tasks=parts.tasks, elements=values.numel(),
    )  # fmt: skip
    return out


@compiled
def _rows(
    v: Any, m: Any, out: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any,
    reverse: bool, zero: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t writes row t, or a column. In reverse, unsigned indices wrap as signed ones would.

    Two entries at a time: each depends on the sum of those before it.
    """
    v, m, out = at(v), at(m), at(out)
    first, sign = (length - 1, np.uint64(-1)) if reverse else (0, np.uint64(1))
    by, m_by, o_by = sign * np.uint64(steps[0]), sign * np.uint64(steps[1]), sign * np.uint64(steps[2])
    stored = out[0]
    for row in range(lo, hi):
        v0 = np.uint64(place(outer, row, 0) + first * steps[0])
        m0 = np.uint64(place(outer, row, 1) + first * steps[1])
        o0, total = np.uint64(place(outer, row, 2) + first * steps[2]), 0.0
        if steps[1] == 0 and m[m0] == 0:
            for k in range(np.uint64(length)):
                out[o0 + k * o_by] = 0
            continue
        for _ in range(length // 2):
            first_there, second_there = m[m0] != 0, m[m0 + m_by] != 0
            x, y = decode(v[v0]), decode(v[v0 + by])
            one = np.float64(x if first_there else zero)
            two = one + (y if second_there else zero)
            out[o0] = encode(total + one if first_there else 0.0, stored)
            out[o0 + o_by] = encode(total + two if second_there else 0.0, stored)
            total += two
            v0, m0, o0 = v0 + by + by, m0 + m_by + m_by, o0 + o_by + o_by
        if length % 2:
            x, there = decode(v[v0]), m[m0] != 0
            out[o0] = encode(total + x if there else 0.0, stored)


@compiled
def _columns(
    v: Any, m: Any, out: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any,
    reverse: bool, zero: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t writes tile t % tiles of the columns."""
    v, m, out = at(v), at(m), at(out)
    tiles = (width + TILE - 1) // TILE
    sums = np.zeros(TILE)
    for task in range(lo, hi):
        column, row = task % tiles * TILE, task // tiles
        w = np.uint64(min(TILE, width - column))
        v_row, m_row = place(outer, row, 0) + column, place(outer, row, 1) + column * inners[1]
        o_row = place(outer, row, 2) + column
        sums[:] = 0
        for k in range(length):
            r = length - 1 - k if reverse else k
            v0, o0 = np.uint64(v_row + r * steps[0]), np.uint64(o_row + r * steps[2])
            m0 = np.uint64(m_row + r * steps[1])
            if inners[1]:
                for u in range(w):
                    value = decode(v[v0 + u])
                    sums[u] += value if m[m0 + u] != 0 else zero
                for u in range(w):
                    out[o0 + u] = encode(sums[u] if m[m0 + u] != 0 else 0.0, out[0])
            elif m[m0] != 0:
                for u in range(w):
                    sums[u] += decode(v[v0 + u])
                for u in range(w):
                    out[o0 + u] = encode(sums[u], out[0])
            else:
                for u in range(w):
                    out[o0 + u] = 0
