"""Products of the specified entries, and their gradient: one pass over values and mask each way.

Factors are multiplied in the type of the values (halves in float32, integers in int64), zeros apart. ``dull`` is the
sum of 0 * x: NaN if a factor is inf or NaN, else 0, which is the product as soon as one factor is zero. It tells such a
product from one whose other factors overflow. Names: v values, m mask, p product of the others, z zeros, n factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import prod as family
from maskgrad.kernels.cpu.compiler import compiled, decode, flat, reordered
from maskgrad.kernels.cpu.floating import encode
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.partition import like, partition, walk, walkable
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.kernel import HALVES

BLOCK = 1024  # entries of a row treated together
TILE = 1024  # columns treated together


def masked_prod(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not values.numel() or not values.ndim or not dim:
        return family.masked_prod.reference(values, mask, tuple(dim), keepdim)
    if not values.is_floating_point():
        dtype = wide = torch.int64
        values = values.to(torch.int64)
    else:
        dtype, wide = values.dtype, torch.float32 if values.dtype in HALVES else values.dtype
    parts = partition((walkable(values), mask), dim, TILE)
    rest, dull = (empty(parts.results, wide) for _ in range(2))
    zeros, count = (empty(parts.results, torch.int64) for _ in range(2))
    one = rest.numpy().dtype.type(1)
    run(
        _columns if parts.inner else _rows, *(flat(x) for x in parts.tensors), *parts.geometry(), one, one - one,
        rest.numpy(), dull.numpy(), zeros.numpy(), count.numpy(), tasks=parts.tasks, elements=values.numel(),
    )  # fmt: skip
    if not parts.whole:
        split, merge = parts.split(rest)
        left = split.ndim - len(merge)
        rest = split.movedim(merge, tuple(range(left, split.ndim))).flatten(left).prod(-1)
        dull, zeros, count = (parts.split(x)[0].sum(merge) for x in (dull, zeros, count))
    rest, dull, zeros, count = (parts.placed(x, keepdim) for x in (rest, dull, zeros, count))
    return torch.where(zeros > 0, dull, rest).to(dtype), rest, zeros, count


def masked_prod_backward(grad: Tensor, values: Tensor, rest: Tensor, zeros: Tensor, mask: Tensor) -> Tensor:
    """As in the reference: one pass that writes the result."""
    if not values.numel() or not values.ndim:
        return family.masked_prod_backward.reference(grad, values, rest, zeros, mask)
    values = walkable(values)
    shape = torch.broadcast_shapes(grad.shape, rest.shape)
    single = torch.where(zeros > 1, 0, rest)  # two zeros and more: nothing is left of any derivative
    few = [single, grad.to(rest.dtype), zeros.clamp(max=1).to(rest.dtype)]
    spread = walk(like(values, values.dtype), values, mask, *(x.expand(shape).contiguous() for x in few))
    zero = np.float64(0) if rest.dtype == torch.float64 else np.float32(0)
    run(
        _backward, *(flat(x) for x in spread.tensors), *spread.geometry(), zero,
        tasks=spread.tasks, elements=values.numel(),
    )  # fmt: skip
    return spread.tensors[0]


@compiled
def _place(outer: Any, row: int, tensor: int) -> int:
    """Where row ``row`` of a tensor begins."""
    start = 0
    for axis in range(outer.shape[0] - 1, -1, -1):
        size = outer[axis, 0]
        start += row % size * outer[axis, 1 + tensor]
        row //= size
    return start


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
    """Task t treats piece t % pieces of row t // pieces."""
    ones = np.ones(BLOCK, np.uint8)
    for task in range(lo, hi):
        row, begin = task // pieces, task % pieces * piece
        stop = min(begin + piece, length)
        v_row, m_row = _place(outer, row, 0), _place(outer, row, 1)
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
    """Task t treats tile t % tiles of the columns, over one piece of the rows."""
    tiles = (width + TILE - 1) // TILE
    ones = np.ones(TILE, np.uint8)
    for task in range(lo, hi):
        column = task % tiles * TILE
        w = min(TILE, width - column)
        row, begin = task // tiles // pieces, task // tiles % pieces * piece
        v_row, m_row = _place(outer, row, 0) + column, _place(outer, row, 1) + column * inners[1]
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


@compiled
def _write(out: Any, v: Any, m: Any, rest: Any, g: Any, zeros: Any, zero: Any) -> None:
    for k in range(out.size):
        x = decode(v[k])
        others = rest / x if zeros == 0 else (rest if x == 0 else zero)
        out[k] = encode(g * others if m[k] != 0 else zero, out[k])


@compiled
def _write_columns(out: Any, v: Any, m: Any, rest: Any, g: Any, zeros: Any, zero: Any) -> None:
    for k in range(out.size):
        x = decode(v[k])
        others = rest[k] / x if zeros[k] == 0 else (rest[k] if x == 0 else zero)
        out[k] = encode(g[k] * others if m[k] != 0 else zero, out[k])


@compiled
def _backward(
    out: Any, v: Any, m: Any, rest: Any, g: Any, zeros: Any, outer: Any, length: int, steps: Any, pieces: int,
    piece: int, zero: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t writes piece t % pieces of row t // pieces. ``rest``, ``g`` and ``zeros`` lie in memory alike."""
    ones = np.ones(BLOCK, np.uint8)
    for task in range(lo, hi):
        row, begin = task // pieces, task % pieces * piece
        stop = min(begin + piece, length)
        o_row, v_row, m_row = _place(outer, row, 0), _place(outer, row, 1), _place(outer, row, 2)
        few = _place(outer, row, 3)
        for r in range(begin, stop, BLOCK):
            end = min(r + BLOCK, stop)
            written, m0, f0 = out[o_row + r : o_row + end], m_row + r * steps[2], few + r * steps[3]
            if steps[2] == 0 and m[m0] == 0:
                written[:] = 0
                continue
            mask = m[m0 : m0 + end - r] if steps[2] else ones[: end - r]
            values, f1 = v[v_row + r : v_row + end], f0 + end - r
            if steps[3] == 0:
                _write(written, values, mask, rest[f0], g[f0], zeros[f0], zero)
            else:
                _write_columns(written, values, mask, rest[f0:f1], g[f0:f1], zeros[f0:f1], zero)
