r"""Vector norms of the specified entries: one pass over values and mask.

.. math:: s_p = \sum_i m_i |x_i|^p \ (p = 0, 1, 2), \qquad s_\infty = \max_i m_i |x_i|, \qquad
          \lVert x \rVert_2 = \sqrt{s_2}, \quad \lVert x \rVert_p = s_p \text{ otherwise}

As in ``reductions.py``, entries are added in blocks in the type of the values (halves in float32), blocks in float64;
nothing is scaled, as nothing is in PyTorch, so squares may overflow. A maximum is found among integers that have the
order of the numbers: NaN wins, and the loop is vector code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import norms as family
from maskgrad.kernels.cpu.compiler import compiled, decode, flat, reordered
from maskgrad.kernels.cpu.floating import ordered, unordered
from maskgrad.kernels.cpu.lines import line
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.partition import like, partition, walk, walkable
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.reductions.cpu import masked_count

BLOCK = 1024  # entries of a row added in their own type
ROWS = 16  # rows of a block of columns, as in torch.sum
TILE = 1024  # columns reduced together: what is kept of them stays in the first-level cache
_ZERO, _ONE, _TWO, _INFINITE = range(4)


def masked_norm(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, ord: float
) -> tuple[Tensor, Tensor]:
    values = values.detach()
    if not values.numel() or not values.ndim or not dim or ord not in (0, 1, 2, np.inf):
        return family.masked_norm.reference(values, mask, tuple(dim), keepdim, ord)
    kind = _INFINITE if ord == np.inf else int(ord)
    part = partition((walkable(values), mask), dim, TILE)
    double = values.dtype == torch.float64
    zero, key = (np.float64(0), np.int64(0)) if double else (np.float32(0), np.int32(0))
    total = torch.float32 if part.whole and not double else torch.float64
    out, present = empty(part.results, total), empty(part.results, torch.uint8)
    run(
        _columns if part.inner else _rows, *(flat(t) for t in part.tensors), *part.geometry(),
        zero, zero + zero.dtype.type(1), key, kind, part.whole and kind == _TWO, out.numpy(), present.numpy(),
        tasks=part.tasks, elements=values.numel(),
    )  # fmt: skip
    present = present.view(torch.bool)
    if not part.whole:
        (out, extra), (present, _) = part.split(out), part.split(present)
        out = out.amax(extra) if kind == _INFINITE else out.sum(extra)
        out, present = (out.sqrt() if kind == _TWO else out), present.any(extra) if extra else present
    return part.placed(out, keepdim).to(values.dtype), part.placed(present, keepdim)


def masked_norm_backward(grad: Tensor, values: Tensor, mask: Tensor, norm: Tensor, ord: float) -> Tensor:
    """As in the reference: one pass that reads values and mask and writes the result; for inf another to find hits."""
    if ord == 0:
        return torch.zeros_like(values)
    if values.dtype in HALVES:
        grad, norm = grad.float(), norm.float()
    if ord == 2:
        return line(values, mask, None, torch.where(norm == 0, 0, grad / norm), None, values.dtype)
    values = walkable(values.detach())
    if ord != 1 and values.numel():
        hits = like(values, torch.bool)
        way = walk(hits, values, mask, norm.detach().contiguous())
        run(
            _walk,
            *(flat(t) for t in way.tensors),
            *way.geometry(),
            True,
            tasks=way.tasks,
            elements=values.numel(),
        )
        dim = [d for d, (n, k) in enumerate(zip(mask.shape, norm.shape, strict=True)) if n != k]
        mask, grad = hits, grad / masked_count(hits, dim, True).clamp(min=1)
    out = like(values, torch.float32 if values.dtype in HALVES else values.dtype)
    if out.numel():
        way = walk(out, values, mask, grad.detach().to(out.dtype).contiguous())
        run(
            _walk,
            *(flat(t) for t in way.tensors),
            *way.geometry(),
            False,
            tasks=way.tasks,
            elements=out.numel(),
        )
    return out.to(values.dtype)


@reordered
def _add_block(v: Any, m: Any, zero: Any, one: Any, kind: int) -> Any:
    s = zero
    if kind == _TWO:
        for r in range(v.size):
            x = decode(v[r]) if m[r] != 0 else zero
            s += x * x
    elif kind == _ONE:
        for r in range(v.size):
            s += abs(decode(v[r])) if m[r] != 0 else zero
    else:
        for r in range(v.size):
            s += one if (m[r] != 0) & (decode(v[r]) != 0) else zero
    return s


@compiled
def _largest(v: Any, m: Any, key: Any) -> Any:
    best = key
    for r in range(v.size):
        size = ordered(abs(decode(v[r])), 0) if m[r] != 0 else key
        best = size if size > best else best
    return best


@compiled
def _any(m: Any) -> bool:
    found = 0
    for r in range(m.size):
        found |= m[r]
    return found != 0


@reordered
def _rows(
    v: Any, m: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any, zero: Any,
    one: Any, key: Any, kind: int, root: bool, out: Any, present: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t reduces piece t % pieces of row t // pieces. Values lie in steps of 1, the mask in steps of 0 or 1."""
    m_step = steps[1]
    complete = np.ones(BLOCK, np.uint8)
    for task in range(lo, hi):
        rest, start = task // pieces, task % pieces * piece
        stop = min(start + piece, length)
        v_row, m_row = 0, 0
        for axis in range(len(outer) - 1, -1, -1):
            i = rest % outer[axis, 0]
            rest //= outer[axis, 0]
            v_row += i * outer[axis, 1]
            m_row += i * outer[axis, 2]
        total, best, found = 0.0, key, False
        if m_step == 0 and m[m_row] == 0:
            stop = start
        for r in range(start, stop, BLOCK):
            end = min(r + BLOCK, stop)
            specified = m[m_row + r : m_row + end] if m_step else complete[: end - r]
            if kind == _INFINITE:
                best = max(best, _largest(v[v_row + r : v_row + end], specified, key))
            else:
                total += _add_block(v[v_row + r : v_row + end], specified, zero, one, kind)
            if not found:
                found = _any(specified)
        if kind == _INFINITE:
            out[task] = unordered(best)
        elif root:
            out[task] = np.sqrt(total)
        else:
            out[task] = total
        present[task] = found


@reordered
def _add_columns(v: Any, m: Any, s: Any, zero: Any, one: Any, kind: int) -> None:
    if kind == _TWO:
        for k in range(v.size):
            x = decode(v[k]) if m[k] != 0 else zero
            s[k] += x * x
    elif kind == _ONE:
        for k in range(v.size):
            s[k] += abs(decode(v[k])) if m[k] != 0 else zero
    else:
        for k in range(v.size):
            s[k] += one if (m[k] != 0) & (decode(v[k]) != 0) else zero


@compiled
def _largest_columns(v: Any, m: Any, best: Any, key: Any) -> None:
    for k in range(v.size):
        size = ordered(abs(decode(v[k])), 0) if m[k] != 0 else key
        best[k] = size if size > best[k] else best[k]


@compiled
def _any_columns(m: Any, found: Any) -> None:
    for k in range(m.size):
        found[k] |= m[k]


@reordered
def _columns(
    v: Any, m: Any, outer: Any, steps: Any, length: int, pieces: int, piece: int, width: int, inners: Any, zero: Any,
    one: Any, key: Any, kind: int, root: bool, out: Any, present: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    """Task t reduces tile t % tiles of the columns, over one piece of the rows."""
    v_step, m_step, m_inner = steps[0], steps[1], inners[1]
    tiles = (width + TILE - 1) // TILE
    all_s, all_total, all_best = np.full(TILE, zero), np.zeros(TILE), np.full(TILE, key)
    all_found, complete = np.zeros(TILE, np.uint8), np.ones(TILE, np.uint8)
    for task in range(lo, hi):
        first = task % tiles * TILE
        w = min(TILE, width - first)
        rest, start = task // tiles // pieces, task // tiles % pieces * piece
        stop = min(start + piece, length)
        v_row, m_row = first, first * m_inner
        for axis in range(len(outer) - 1, -1, -1):
            i = rest % outer[axis, 0]
            rest //= outer[axis, 0]
            v_row += i * outer[axis, 1]
            m_row += i * outer[axis, 2]
        s, total, best, found = all_s[:w], all_total[:w], all_best[:w], all_found[:w]
        total[:], best[:], found[:] = 0, key, 0
        for block in range(start, stop, ROWS):
            s[:] = zero
            for r in range(block, min(block + ROWS, stop)):
                v0, m0 = v_row + r * v_step, m_row + r * m_step
                if m_inner == 0 and m[m0] == 0:
                    continue
                specified = m[m0 : m0 + w] if m_inner else complete[:w]
                if kind == _INFINITE:
                    _largest_columns(v[v0 : v0 + w], specified, best, key)
                else:
                    _add_columns(v[v0 : v0 + w], specified, s, zero, one, kind)
                _any_columns(specified, found)
            if kind != _INFINITE:
                for k in range(w):
                    total[k] += s[k]
        base = task // tiles * width + first
        for k in range(w):
            if kind == _INFINITE:
                out[base + k] = unordered(best[k])
            elif root:
                out[base + k] = np.sqrt(total[k])
            else:
                out[base + k] = total[k]
            present[base + k] = found[k]


@compiled
def _hit_block(out: Any, v: Any, m: Any, c: Any) -> None:
    """Where a specified entry attains the norm ``c``, or both are NaN."""
    for k in range(out.size):
        size = abs(decode(v[k]))
        out[k] = (m[k] != 0) & ((size == c) | ((size != size) & (c != c)))


@compiled
def _hit_columns(out: Any, v: Any, m: Any, c: Any) -> None:
    for k in range(out.size):
        size, norm = abs(decode(v[k])), c[k]
        out[k] = (m[k] != 0) & ((size == norm) | ((size != size) & (norm != norm)))


@compiled
def _sign_block(out: Any, v: Any, m: Any, g: Any) -> None:
    """The sign of a specified entry times ``g``, exactly 0 elsewhere."""
    for k in range(out.size):
        x = decode(v[k])
        y = g if x > 0 else -g if x < 0 else g * 0
        out[k] = y if m[k] != 0 else 0


@compiled
def _sign_columns(out: Any, v: Any, m: Any, g: Any) -> None:
    for k in range(out.size):
        x, share = decode(v[k]), g[k]
        y = share if x > 0 else -share if x < 0 else share * 0
        out[k] = y if m[k] != 0 else 0


@compiled
def _walk(
    out: Any, v: Any, m: Any, c: Any, outer: Any, length: int, steps: Any, pieces: int, piece: int, hit: bool, lo: int,
    hi: int,
) -> None:  # fmt: skip
    """Hits of the norm ``c``, or signs times ``c``. Task t writes piece t % pieces of row t // pieces."""
    m_step, step = steps[2], steps[3]
    complete = np.ones(piece, np.uint8)
    for task in range(lo, hi):
        rest, start = task // pieces, task % pieces * piece
        stop = min(start + piece, length)
        out_row, v_row, m_row, c_row = start, start, start * m_step, start * step
        for axis in range(len(outer) - 1, -1, -1):
            i = rest % outer[axis, 0]
            rest //= outer[axis, 0]
            out_row += i * outer[axis, 1]
            v_row += i * outer[axis, 2]
            m_row += i * outer[axis, 3]
            c_row += i * outer[axis, 4]
        n = stop - start
        row, entries = out[out_row : out_row + n], v[v_row : v_row + n]
        if m_step == 0 and m[m_row] == 0:
            row[:] = 0
            continue
        specified = m[m_row : m_row + n] if m_step else complete[:n]
        if step:
            if hit:
                _hit_columns(row, entries, specified, c[c_row : c_row + n])
            else:
                _sign_columns(row, entries, specified, c[c_row : c_row + n])
        elif hit:
            _hit_block(row, entries, specified, c[c_row])
        else:
            _sign_block(row, entries, specified, c[c_row])
