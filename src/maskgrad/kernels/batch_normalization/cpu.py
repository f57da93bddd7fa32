r"""Standardizing groups that lie across the tensor: two passes forward, two backward.

.. math:: \frac{\partial L}{\partial x} = g\,a + (x - \bar x)\,d + o, \qquad a = w s, \quad
          d = -\frac{s^3}{n} \sum w g (x - \bar x), \quad o = -\frac sn \sum w g

The numbers of a group are few: what remains to be done for each entry is a line forward, and backward two sums, of
:math:`g` and :math:`g (x - \bar x)`, and the line above. Blocks are added in the type of the values (halves in
float32), sums of blocks in float64.

Legend: v values, g gradient, m mask, c center (the mean).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import batch_normalization as family
from maskgrad.kernels.cpu.compiler import compiled, decode, flat, reordered
from maskgrad.kernels.cpu.lines import line
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.partition import like, partition, walk, walkable
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.reductions.cpu import masked_count
from maskgrad.kernels.variance.cpu import masked_variance

BLOCK = 1024  # entries of a row added in their own type
ROWS = 16  # rows of a block of columns
TILE = 1024  # columns reduced together: what is kept of them stays in the first-level cache


def masked_batch_norm(
    values: Tensor, mask: Tensor, dim: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    if not values.numel() or not dim:
        return family.masked_batch_norm.reference(values, mask, tuple(dim), weight, bias, eps)
    variance, mean, count = masked_variance(values, mask, dim, True, 0.0)
    scale = torch.rsqrt(torch.where(count > 0, variance + eps, 1))
    slope = scale if weight is None else scale * weight.detach().to(scale.dtype)
    return line(values, mask, mean, slope, bias, values.dtype), mean, variance, scale, count


def masked_batch_norm_backward(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    mean: Tensor,
    scale: Tensor,
    count: Tensor,
    dim: Sequence[int],
    weight: Tensor | None,
    level: Sequence[int],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    inner = [d for d, (n, k) in enumerate(zip(values.shape, level, strict=True)) if n != k]
    if not values.numel() or not inner:
        return family.masked_batch_norm_backward.reference(
            grad, values, mask, mean, scale, count, tuple(dim), weight, list(level), eps
        )
    wide = mean.dtype
    values, grad, mean, scale = (
        walkable(values.detach()),
        grad.detach().to(values.dtype),
        mean.detach(),
        scale.detach(),
    )
    of_bias, products = _pair_sums(values, grad, mask, mean, inner)
    weight = torch.ones((), dtype=wide) if weight is None else weight.detach().to(wide)
    of_weight = products * scale
    if list(level) != list(mean.shape):  # a channel without entries in a group with some: 0 * inf is to be 0
        present = masked_count(mask, inner, True) > 0
        of_weight, weight = torch.where(present, of_weight, 0), torch.where(present, weight, 0)
    # from the level of the parameters to that of the groups, and never back: these tensors are small
    number = count.clamp(min=1)
    rest = [d % values.ndim for d in dim]
    slope = -(scale**3) * ((products * weight).sum(rest, keepdim=True) / number)
    offset = -scale * ((of_bias * weight).sum(rest, keepdim=True) / number)
    result = _blend(values, grad, mask, mean, weight * scale, slope, offset)
    return result, of_weight, of_bias


def _pair_sums(
    values: Tensor, grad: Tensor, mask: Tensor, mean: Tensor, dim: list[int]
) -> tuple[Tensor, Tensor]:
    """The sums of g and of g (v - c) over ``dim``, which are kept."""
    number = np.float64(0) if mean.dtype == torch.float64 else np.float32(0)
    part = partition((values, grad, mask, mean.contiguous().expand(values.shape)), dim, TILE)
    sums, products = empty(part.results, torch.float64), empty(part.results, torch.float64)
    run(
        _columns if part.inner else _rows, *(flat(t) for t in part.tensors), *part.geometry(), number,
        sums.numpy(), products.numpy(), tasks=part.tasks, elements=values.numel() * 2,
    )  # fmt: skip
    results = []
    for x in (sums, products):
        parts, extra = part.split(x)
        results.append(part.placed(parts.sum(extra), True).to(mean.dtype))
    return results[0], results[1]


def _blend(values: Tensor, grad: Tensor, mask: Tensor, *numbers: Tensor) -> Tensor:
    """``g a + (v - c) d + o`` where the mask holds, else 0; ``numbers`` are c, a, d, o."""
    wide = torch.float32 if values.dtype in HALVES else values.dtype
    out = like(values, wide)
    # Alike in shape, all vary along the inner axis or none does.
    few = [x.contiguous() for x in torch.broadcast_tensors(*numbers)]
    way = walk(out, values, grad, mask, *few)
    run(
        _blend_rows,
        *(flat(t) for t in way.tensors),
        *way.geometry(),
        tasks=way.tasks,
        elements=out.numel() * 2,
    )
    return out.to(values.dtype)


@reordered
def _add_block(v: Any, g: Any, m: Any, c: Any, zero: Any) -> Any:
    a, b = zero, zero
    for k in range(v.size):
        specified = m[k] != 0
        h = decode(g[k]) if specified else zero
        d = decode(v[k]) - c if specified else zero
        a += h
        b += h * d
    return a, b


@reordered
def _rows(
    v: Any, g: Any, m: Any, c: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int,
    inners: Any, zero: Any, sums: Any, products: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t adds piece t % pieces of row t // pieces. Values lie in steps of 1, others in steps of 0 or 1."""
    g_step, m_step = steps[1], steps[2]
    complete, same = np.ones(BLOCK, np.uint8), np.full(BLOCK, g[0])
    for task in range(lo, hi):
        rest, start = task // pieces, task % pieces * piece
        stop = min(start + piece, length)
        v_row, g_row, m_row, c_row = 0, 0, 0, 0
        for axis in range(len(outer) - 1, -1, -1):
            i = rest % outer[axis, 0]
            rest //= outer[axis, 0]
            v_row += i * outer[axis, 1]
            g_row += i * outer[axis, 2]
            m_row += i * outer[axis, 3]
            c_row += i * outer[axis, 4]
        if m_step == 0 and m[m_row] == 0:
            stop = start
        if g_step == 0:
            same[:] = g[g_row]
        a, b = 0.0, 0.0
        for r in range(start, stop, BLOCK):
            end = min(r + BLOCK, stop)
            specified = m[m_row + r : m_row + end] if m_step else complete[: end - r]
            share = g[g_row + r : g_row + end] if g_step else same[: end - r]
            block_a, block_b = _add_block(v[v_row + r : v_row + end], share, specified, c[c_row], zero)
            a += block_a
            b += block_b
        sums[task], products[task] = a, b


@reordered
def _add_columns(v: Any, g: Any, m: Any, c: Any, a: Any, b: Any, zero: Any) -> None:
    for k in range(v.size):
        specified = m[k] != 0
        h = decode(g[k]) if specified else zero
        d = decode(v[k]) - c[k] if specified else zero
        a[k] += h
        b[k] += h * d


@reordered
def _columns(
    v: Any, g: Any, m: Any, c: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int,
    inners: Any, zero: Any, sums: Any, products: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t adds tile t % tiles of the columns, over one piece of the rows."""
    v_step, g_step, m_step = steps[0], steps[1], steps[2]
    tiles = (width + TILE - 1) // TILE
    all_a, all_b, all_c, all_g = (
        np.full(TILE, zero),
        np.full(TILE, zero),
        np.full(TILE, zero),
        np.full(TILE, g[0]),
    )
    all_sums, all_products, complete = np.zeros(TILE), np.zeros(TILE), np.ones(TILE, np.uint8)
    for task in range(lo, hi):
        first = task % tiles * TILE
        w = min(TILE, width - first)
        rest, start = task // tiles // pieces, task // tiles % pieces * piece
        stop = min(start + piece, length)
        v_row, g_row, m_row, c_row = first, first * inners[1], first * inners[2], first * inners[3]
        for axis in range(len(outer) - 1, -1, -1):
            i = rest % outer[axis, 0]
            rest //= outer[axis, 0]
            v_row += i * outer[axis, 1]
            g_row += i * outer[axis, 2]
            m_row += i * outer[axis, 3]
            c_row += i * outer[axis, 4]
        a, b, center, total_a, total_b = all_a[:w], all_b[:w], all_c[:w], all_sums[:w], all_products[:w]
        total_a[:], total_b[:] = 0, 0
        for k in range(w):
            center[k] = c[c_row + k * inners[3]]
        for block in range(start, stop, ROWS):
            a[:], b[:] = zero, zero
            for r in range(block, min(block + ROWS, stop)):
                v0, g0, m0 = v_row + r * v_step, g_row + r * g_step, m_row + r * m_step
                if inners[2] == 0 and m[m0] == 0:
                    continue
                specified = m[m0 : m0 + w] if inners[2] else complete[:w]
                if inners[1] == 0:
                    all_g[:] = g[g0]
                share = g[g0 : g0 + w] if inners[1] else all_g[:w]
                _add_columns(v[v0 : v0 + w], share, specified, center, a, b, zero)
            for k in range(w):
                total_a[k] += a[k]
                total_b[k] += b[k]
        base = task // tiles * width + first
        for k in range(w):
            sums[base + k], products[base + k] = total_a[k], total_b[k]


@compiled
def _blend_constant(out: Any, v: Any, g: Any, m: Any, c: Any, a: Any, d: Any, o: Any) -> None:
    for k in range(out.size):
        y = decode(g[k]) * a + (decode(v[k]) - c) * d + o
        out[k] = y if m[k] != 0 else 0


@compiled
def _blend_varying(out: Any, v: Any, g: Any, m: Any, c: Any, a: Any, d: Any, o: Any) -> None:
    for k in range(out.size):
        y = decode(g[k]) * a[k] + (decode(v[k]) - c[k]) * d[k] + o[k]
        out[k] = y if m[k] != 0 else 0


@compiled
def _blend_rows(
    out: Any, v: Any, g: Any, m: Any, c: Any, a: Any, d: Any, o: Any, outer: Any, length: int, steps: Any, pieces: int,
    piece: int, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t writes piece t % pieces of row t // pieces."""
    g_step, m_step, step = steps[2], steps[3], steps[4]
    complete, same = np.ones(piece, np.uint8), np.full(piece, g[0])
    for task in range(lo, hi):
        rest, start = task // pieces, task % pieces * piece
        n = min(start + piece, length) - start
        out_row, v_row, g_row, m_row = start, start, start * g_step, start * m_step
        c_row = a_row = d_row = o_row = start * step
        for axis in range(len(outer) - 1, -1, -1):
            i = rest % outer[axis, 0]
            rest //= outer[axis, 0]
            out_row += i * outer[axis, 1]
            v_row += i * outer[axis, 2]
            g_row += i * outer[axis, 3]
            m_row += i * outer[axis, 4]
            c_row += i * outer[axis, 5]
            a_row += i * outer[axis, 6]
            d_row += i * outer[axis, 7]
            o_row += i * outer[axis, 8]
        row, entries = out[out_row : out_row + n], v[v_row : v_row + n]
        if m_step == 0 and m[m_row] == 0:
            row[:] = 0
            continue
        if g_step == 0:
            same[:] = g[g_row]
        share = g[g_row : g_row + n] if g_step else same[:n]
        specified = m[m_row : m_row + n] if m_step else complete[:n]
        if step:
            _blend_varying(
                row, entries, share, specified, c[c_row : c_row + n], a[a_row : a_row + n], d[d_row : d_row + n],
                o[o_row : o_row + n],
            )  # fmt: skip
        else:
            _blend_constant(row, entries, share, specified, c[c_row], a[a_row], d[d_row], o[o_row])
