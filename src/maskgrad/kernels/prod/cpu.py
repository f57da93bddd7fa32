"""Products of the specified entries, and their gradient: one pass over values and mask each way.

Factors are multiplied in the type of the values (half precision in float32, integers in int64; of segments, floats in
float64), zeros apart. ``dull`` is the sum of 0 * x: NaN if a factor is inf or NaN, else 0, which is the product as soon
as one factor is zero. It distinguishes this from an overflow of the other factors.
Names: v values, m mask, p product of the others, z zeros, n factors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu import segments
from maskgrad.kernels.cpu.compiler import at, compiled, decode, flat, formula, reordered
from maskgrad.kernels.cpu.loops import cut, entrywise, place, write
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.partition import partition, standing
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.kernel import HALVES

BLOCK = 1024  # entries of a row processed together
TILE = 1024  # columns processed together


def masked_prod(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not values.is_floating_point():
        dtype = wide = torch.int64
        values = values.to(torch.int64)
    else:
        dtype, wide = values.dtype, torch.float32 if values.dtype in HALVES else values.dtype
    tensors, parts = partition(standing(values, mask, dim), dim, TILE)
    rest, dull = (parts.empty(wide) for _ in range(2))
    zeros, count = (parts.empty(torch.int64) for _ in range(2))
    one = rest.numpy().dtype.type(1)
    run(
        _columns if parts.inner else _rows, *[flat(x) for x in tensors], *parts.geometry, one, one - one,
        flat(rest), flat(dull), flat(zeros), flat(count), tasks=parts.tasks, elements=values.numel(),
    )  # fmt: skip
    if not parts.whole:
        split, merge = parts.split(rest)
        left = split.ndim - len(merge)
        rest = split.movedim(merge, tuple(range(left, split.ndim))).flatten(left).prod(-1)
        dull, zeros, count = (parts.split(x)[0].sum(merge) for x in (dull, zeros, count))
    rest, dull, zeros, count = (parts.placed(x, keepdim) for x in (rest, dull, zeros, count))
    return torch.where(zeros > 0, dull, rest).to(dtype), rest, zeros, count


def masked_prod_backward(grad: Tensor, values: Tensor, rest: Tensor, zeros: Tensor, mask: Tensor) -> Tensor:
    single = torch.where(zeros > 1, 0, rest)  # with two or more zeros all derivatives are 0
    return write(_BACKWARD, values, None, mask, single, grad, zeros.clamp(max=1).to(single.dtype))


@formula
def _others(x: Any, y: Any, rest: Any, grad: Any, zeros: Any, d: Any, n: Any) -> Any:
    others = rest / x if zeros == 0 else (rest if x == 0 else n[0])
    return grad * others


_BACKWARD = entrywise(_others)


@reordered
def _multiply(v: Any, m: Any, one: Any, zero: Any) -> Any:
    p, dull, z, n = one, zero, 0, 0
    for r in range(v.size):
        x = decode(v[r])
        p *= x if (m[r] != 0) & (x != 0) else one
        dull += x * zero if m[r] != 0 else zero
        z += (m[r] != 0) & (x == 0)
        n += m[r] != 0
    return p, dull, z, n


@compiled
def _rows(
    v: Any, m: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any, one: Any,
    zero: Any, rest: Any, dull: Any, zeros: Any, count: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t handles piece t % pieces of row t // pieces."""
    v, m, rest, dull, zeros, count = at(v), at(m), at(rest), at(dull), at(zeros), at(count)
    ones = np.ones(BLOCK, np.uint8)
    for task in range(lo, hi):
        row, begin = cut(task, pieces, piece)
        stop = min(begin + piece, length)
        v_row, m_row = place(outer, row, 0), place(outer, row, 1)
        rest[task], dull[task], zeros[task], count[task] = one, zero, 0, 0
        if steps[1] or m[m_row] != 0:
            for r in range(begin, stop, BLOCK):
                end = min(r + BLOCK, stop)
                mask = m[m_row + r : m_row + end] if steps[1] else ones[: end - r]
                p, s, z, n = _multiply(v[v_row + r : v_row + end], mask, one, zero)
                rest[task] *= p
                dull[task] += s
                zeros[task] += z
                count[task] += n


@compiled
def _multiply_columns(v: Any, m: Any, p: Any, dull: Any, one: Any, zero: Any) -> None:
    for k in range(v.size):
        x = decode(v[k])
        p[k] *= x if (m[k] != 0) & (x != 0) else one
        dull[k] += x * zero if m[k] != 0 else zero


@compiled
def _count_columns(v: Any, m: Any, z: Any, n: Any) -> None:
    for k in range(v.size):
        z[k] += (m[k] != 0) & (decode(v[k]) == 0)
        n[k] += m[k] != 0


@compiled
def _columns(
    v: Any, m: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any, one: Any,
    zero: Any, rest: Any, dull: Any, zeros: Any, count: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t handles tile t % tiles of the columns, over one piece of the rows."""
    v, m, rest, dull, zeros, count = at(v), at(m), at(rest), at(dull), at(zeros), at(count)
    tiles = (width + TILE - 1) // TILE
    ones = np.ones(TILE, np.uint8)
    for task in range(lo, hi):
        column = task % tiles * TILE
        w = min(TILE, width - column)
        row, begin = cut(task // tiles, pieces, piece)
        v_row, m_row = place(outer, row, 0) + column, place(outer, row, 1) + column * inners[1]
        base = task // tiles * width + column
        p, s, z, n = (
            rest[base : base + w],
            dull[base : base + w],
            zeros[base : base + w],
            count[base : base + w],
        )
        p[:], s[:], z[:], n[:] = one, zero, 0, 0
        for r in range(begin, min(begin + piece, length)):
            v0, m0 = v_row + r * steps[0], m_row + r * steps[1]
            if inners[1] or m[m0] != 0:
                mask = m[m0 : m0 + w] if inners[1] else ones[:w]
                _multiply_columns(v[v0 : v0 + w], mask, p, s, one, zero)
                _count_columns(v[v0 : v0 + w], mask, z, n)


def segment_prod(values: Tensor, pointers: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    exact = values.is_floating_point()
    dtype = torch.promote_types(values.dtype, torch.float32) if exact else torch.int64
    wide, one = (torch.float64, np.float64(1)) if exact else (torch.int64, np.int64(1))
    shape, width = (pointers.shape[0] - 1, *values.shape[1:]), math.prod(values.shape[1:])
    rest, dull, zeros = (empty(shape, d) for d in (wide, wide, torch.int64))
    run(
        _segments, segments.entries(values.detach().to(dtype)), *segments.bounds(pointers, order), width, one,
        *(x.view(-1).numpy() for x in (rest, dull, zeros)), tasks=shape[0], elements=values.numel(),
    )  # fmt: skip
    product = torch.where(zeros > 0, dull, rest).to(dtype)
    return product, rest.float() if values.dtype in HALVES else rest, zeros


def segment_prod_backward(
    grad: Tensor, values: Tensor, rest: Tensor, zeros: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    share = rest.detach().double() * grad.detach()
    return segments.write(_SEGMENT_BACKWARD, values, values, share, zeros, pointers, order)


@formula
def _shared(x: Any, y: Any, share: Any, zeros: Any) -> Any:
    if zeros == 0:
        return share / x
    return share if (zeros == 1) & (x == 0) else 0.0


_SEGMENT_BACKWARD = segments.writing(_shared)


@reordered
def _multiply_segment(v: Any, one: Any) -> Any:
    p, dull, z = one, one * 0, 0
    for i in range(v.size):
        x = v[i]
        p *= x if x != 0 else one
        dull += x * 0
        z += x == 0
    return p, dull, z


@compiled
def _segments(
    v: Any, pointers: Any, order: Any, has_order: bool, width: int, one: Any, rest: Any, dull: Any, zeros: Any,
    lo: int, hi: int,
) -> None:  # fmt: skip
    for k in range(lo, hi):
        start, stop = pointers[k], pointers[k + 1]
        if width == 1 and not has_order:
            rest[k], dull[k], zeros[k] = _multiply_segment(v[start:stop], one)
            continue
        if width == 1:
            product, nothing, few = one, one * 0, 0
            for at in order[start:stop]:
                x = v[at]
                product *= x if x != 0 else one
                nothing += x * 0
                few += x == 0
            rest[k], dull[k], zeros[k] = product, nothing, few
            continue
        first, last = k * width, (k + 1) * width
        p, s, z = rest[first:last], dull[first:last], zeros[first:last]
        p[:], s[:], z[:] = one, 0, 0
        for i in range(start, stop):
            at = (order[i] if has_order else i) * width
            row = v[at : at + width]
            for j in range(width):
                x = row[j]
                p[j] *= x if x != 0 else one
                s[j] += x * 0
                z[j] += x == 0
