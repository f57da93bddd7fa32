r"""Vector norms of the specified entries, and their gradient: one pass over values and mask each way.

.. math:: s_p = \sum_i m_i |x_i|^p \ (p = 0, 1, 2), \qquad s_\infty = \max_i m_i |x_i|, \qquad
          \lVert x \rVert_2 = \sqrt{s_2}, \quad \lVert x \rVert_p = s_p \text{ otherwise}

Each thread adds in the type of the values (halves in float32), and what the threads have is added in float64; nothing
is scaled, as nothing is in PyTorch, so squares may overflow. In a maximum NaN wins. The gradient of the largest size
is shared by those that attain it, so their number is found by another pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels import norms as family
from maskgrad.kernels.cuda.compiler import compiled, precision
from maskgrad.kernels.cuda.tiles import entrywise, place, reduction, restored, table, tile, tile_place
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.reductions.cuda import masked_count
from maskgrad.kernels.segments.cuda import places_of, walk_segments

ZERO, ONE, TWO, INFINITE = (tl.constexpr(kind) for kind in range(4))
POWER, LARGEST, SMALLEST = (tl.constexpr(kind) for kind in range(3, 6))  # of segments


def masked_norm(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, ord: float
) -> tuple[Tensor, Tensor]:
    values = values.detach()
    if ord not in family.ORDERS:
        return family.masked_norm.reference(values, mask, tuple(dim), keepdim, ord)
    bits = mask.view(torch.int8)
    view = table((values, bits), dim)
    pieces = view.tile.pieces
    out = torch.empty(view.kept.number * pieces, dtype=torch.float64, device=values.device)
    present = torch.empty(len(out), dtype=torch.bool, device=values.device)
    kind = 3 if ord == math.inf else int(ord)
    reduction(
        _norms, view, (values, bits), (out, present.view(torch.int8)), KIND=kind, ACC=precision(values.dtype)
    )
    if pieces > 1:
        parts, present = out.view(-1, pieces), present.view(-1, pieces).any(1)
        out = parts.amax(1) if ord == math.inf else parts.sum(1)
    out = out.sqrt() if ord == 2 else out
    return restored(out.to(values.dtype), view, keepdim), restored(present, view, keepdim)


def masked_norm_backward(grad: Tensor, values: Tensor, mask: Tensor, norm: Tensor, ord: float) -> Tensor:
    """One pass that writes the result; for inf two more that find and count who attains it."""
    values, grad, norm = values.detach(), grad.detach(), norm.detach()
    if ord == 0:
        return torch.zeros_like(values)
    if values.dtype in HALVES:
        grad, norm = grad.float(), norm.float()
    if ord == 2:
        grad = torch.where(norm == 0, 0, grad / norm)
    if ord not in (1, 2):
        hits = torch.empty_like(values, dtype=torch.bool)
        entrywise(
            _hit, hits.view(torch.int8), values, norm.expand(values.shape), mask.view(torch.int8),
            ACC=precision(values.dtype),
        )  # fmt: skip
        dim = [d for d, (n, k) in enumerate(zip(mask.shape, norm.shape, strict=True)) if n != k]
        mask, grad = hits, grad / masked_count(hits, dim, True).clamp(min=1)
    out = torch.empty_like(values)
    share = grad.to(torch.float32 if values.dtype in HALVES else values.dtype)
    entrywise(
        _backward, out, values, share.expand(values.shape), mask.view(torch.int8), SQUARE=ord == 2,
        ACC=precision(values.dtype),
    )  # fmt: skip
    return out


@compiled
def _norms(
    values: tl.tensor, mask: tl.tensor, out: tl.tensor, present: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor,
    v_kept: tl.tensor, m_kept: tl.tensor, reduced: tl.tensor, sizes: tl.tensor, v_steps: tl.tensor,
    m_steps: tl.tensor, piece: tl.tensor, pieces: tl.tensor, KIND: tl.constexpr, ACC: tl.constexpr,
    INDEX: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    """Sums (not yet a root) or maxima, and whether there was an entry."""
    program = tl.program_id(0).to(INDEX)
    k = program // pieces * KEPT + tl.arange(0, KEPT)
    start = program % pieces * piece
    stop = tl.minimum(start + piece, reduced)
    v_row = place(k, kept_sizes, v_kept)[:, None]
    m_row = place(k, kept_sizes, m_kept)[:, None]
    acc = tl.zeros((KEPT, REDUCED), ACC)
    missing = tl.zeros((KEPT, REDUCED), tl.int32)
    some = tl.zeros((KEPT, REDUCED), tl.int32)
    for first in range(start, stop, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = (k < kept)[:, None] & (r < stop)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        v = tl.load(values + v_row + place(r, sizes, v_steps)[None, :], mask=inside, other=0).to(ACC)
        size = tl.where(m, tl.abs(v), 0)
        some = some | m.to(tl.int32)
        if KIND == INFINITE:
            acc = tl.where(size > acc, size, acc)
            missing = missing | (size != size).to(tl.int32)
        elif KIND == TWO:
            acc += size * size
        elif KIND == ONE:
            acc += size
        else:
            acc += (size != 0).to(ACC)
    if KIND == INFINITE:
        result = tl.max(acc, axis=1).to(tl.float64)
        result = tl.where(tl.max(missing, axis=1) > 0, float("nan"), result)
    else:
        result = tl.sum(acc.to(tl.float64), axis=1)
    to = k * pieces + program % pieces
    tl.store(out + to, result, mask=k < kept)
    tl.store(present + to, tl.max(some, axis=1).to(tl.int8), mask=k < kept)


@compiled
def _hit(
    out: tl.tensor, values: tl.tensor, norm: tl.tensor, mask: tl.tensor, rows: tl.tensor, row_sizes: tl.tensor,
    o_rows: tl.tensor, v_rows: tl.tensor, n_rows: tl.tensor, m_rows: tl.tensor, length: tl.tensor, sizes: tl.tensor,
    o_steps: tl.tensor, v_steps: tl.tensor, n_steps: tl.tensor, m_steps: tl.tensor, pieces: tl.tensor,
    ACC: tl.constexpr, INDEX: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    """Where a specified entry attains the norm, or both are NaN."""
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    m_place = tile_place(row, row_sizes, m_rows, column, sizes, m_steps)
    v_place = tile_place(row, row_sizes, v_rows, column, sizes, v_steps)
    n_place = tile_place(row, row_sizes, n_rows, column, sizes, n_steps)
    o_place = tile_place(row, row_sizes, o_rows, column, sizes, o_steps)
    m = tl.load(mask + m_place, mask=inside, other=0) != 0
    size = tl.abs(tl.load(values + v_place, mask=inside, other=0).to(ACC))
    n = tl.load(norm + n_place, mask=inside, other=0).to(ACC)
    hit = m & ((size == n) | ((size != size) & (n != n)))
    tl.store(out + o_place, hit.to(tl.int8), mask=inside)


@compiled
def _backward(
    out: tl.tensor, values: tl.tensor, share: tl.tensor, mask: tl.tensor, rows: tl.tensor, row_sizes: tl.tensor,
    o_rows: tl.tensor, v_rows: tl.tensor, s_rows: tl.tensor, m_rows: tl.tensor, length: tl.tensor, sizes: tl.tensor,
    o_steps: tl.tensor, v_steps: tl.tensor, s_steps: tl.tensor, m_steps: tl.tensor, pieces: tl.tensor,
    SQUARE: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    """The entry (of a sum of squares) or its sign, times what its slice has; exactly 0 elsewhere."""
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    m_place = tile_place(row, row_sizes, m_rows, column, sizes, m_steps)
    v_place = tile_place(row, row_sizes, v_rows, column, sizes, v_steps)
    s_place = tile_place(row, row_sizes, s_rows, column, sizes, s_steps)
    o_place = tile_place(row, row_sizes, o_rows, column, sizes, o_steps)
    m = tl.load(mask + m_place, mask=inside, other=0) != 0
    v = tl.load(values + v_place, mask=inside, other=0).to(ACC)
    s = tl.load(share + s_place, mask=inside, other=0).to(ACC)
    result = v * s if SQUARE else tl.where(v > 0, s, tl.where(v < 0, -s, s * 0))
    tl.store(out + o_place, tl.where(m, result, 0).to(out.dtype.element_ty), mask=inside)


def segment_norm(values: Tensor, pointers: Tensor, order: Tensor | None, ord: float) -> Tensor:
    values = values.detach().contiguous()
    wide = torch.float32 if values.dtype in HALVES else values.dtype
    source, kind = values, _kind(ord)
    if kind == 3:
        source, kind = values.to(wide).abs().pow_(ord), 1
    out = values.new_empty((len(pointers) - 1, *values.shape[1:]), dtype=torch.float64)
    walk_segments(_segment_norms, source, pointers, order, len(values), (source, out), KIND=kind)
    if ord not in (0, 1, math.inf, -math.inf):
        out = out.sqrt_() if ord == 2 else out.pow_(1 / ord)
    if ord < 0:  # the sum of nothing is 0, and 0 ** (1 / ord) inf; the smallest of nothing is inf
        out.masked_fill_((pointers.diff() == 0).view(-1, *(1,) * (out.ndim - 1)), 0)
    return out.to(wide)


def segment_norm_backward(
    grad: Tensor, values: Tensor, norm: Tensor, pointers: Tensor, order: Tensor | None, ord: float
) -> Tensor:
    """One pass that writes the result; for inf and -inf another that counts who attains it."""
    values, norm, share = values.detach().contiguous(), norm.detach().contiguous(), grad.detach().double()
    out, kind = torch.empty_like(values), _kind(ord)
    if ord == 0:
        return out.zero_()
    powers = values
    if kind in (2, 3):
        share = torch.where(norm == 0, 0, share * norm.double().pow(1 - ord))
    if kind == 3:
        powers = (values.float() if values.dtype in HALVES else values).abs().pow_(ord - 1)
    walk_segments(
        _segment_backward, values, pointers, order, len(values), (values, powers, share.contiguous(), norm, out),
        KIND=kind,
    )  # fmt: skip
    return out


def _kind(ord: float) -> int:
    if math.isinf(ord):
        return 4 if ord > 0 else 5
    return int(ord) if ord in (0, 1, 2) else 3


@compiled
def _segment_norms(
    values: tl.tensor, out: tl.tensor, pointers: tl.tensor, order: tl.tensor, number: tl.tensor, width: tl.tensor,
    KIND: tl.constexpr, ORDERED: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr,
    STEP: tl.constexpr,
) -> None:  # fmt: skip
    """Sums (not yet a root), or an extreme size."""
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    acc = tl.zeros((LANES, STEP), tl.float64)
    missing = tl.zeros((LANES, STEP), tl.int32)
    if KIND == SMALLEST:
        acc = acc + float("inf")
    for done in range(0, tl.max(stop - start, axis=0), STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        size = tl.abs(tl.load(values + place, mask=inside, other=0).to(tl.float64))
        if KIND == LARGEST:
            acc = tl.where(size > acc, size, acc)
        elif KIND == SMALLEST:
            acc = tl.where(inside & (size < acc), size, acc)
        elif KIND == TWO:
            acc += size * size
        elif KIND == ONE:
            acc += size
        else:
            acc += (size != 0).to(tl.float64)
        missing = missing | (size != size).to(tl.int32)
    if KIND >= LARGEST:
        result = tl.max(acc, axis=1) if KIND == LARGEST else tl.min(acc, axis=1)
        result = tl.where(tl.max(missing, axis=1) > 0, float("nan"), result)
    else:
        result = tl.sum(acc, axis=1)
    tl.store(out + lane, result, mask=lane < number)


@compiled
def _segment_backward(
    values: tl.tensor, powers: tl.tensor, share: tl.tensor, norm: tl.tensor, out: tl.tensor, pointers: tl.tensor,
    order: tl.tensor, number: tl.tensor, width: tl.tensor, KIND: tl.constexpr, ORDERED: tl.constexpr,
    INDEX: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    """The entry, its sign, or its sign times its power, times what its segment has; ties share."""
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    longest = tl.max(stop - start, axis=0)
    factor = tl.load(share + lane, mask=lane < number, other=0)
    best = tl.load(norm + lane, mask=lane < number, other=0)[:, None]
    if KIND >= LARGEST:
        ties = tl.zeros((LANES, STEP), tl.int64)
        for done in range(0, longest, STEP):
            entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
            inside = entry < stop[:, None]
            place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
            size = tl.abs(tl.load(values + place, mask=inside, other=0)).to(best.dtype)
            hit = (size == best) | ((size != size) & (best != best))
            ties += tl.where(inside & hit, 1, 0)
        factor = factor / tl.maximum(tl.sum(ties, axis=1), 1).to(tl.float64)
    each = tl.broadcast_to(factor[:, None], (LANES, STEP))
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        v = tl.load(values + place, mask=inside, other=0)
        result = each
        if KIND == TWO:
            result = v.to(tl.float64) * each
        else:
            if KIND == POWER:
                power = tl.load(powers + place, mask=inside, other=0).to(tl.float64)
                result = each * tl.where(v == 0, 0, power)
            result = tl.where(v > 0, result, tl.where(v < 0, -result, result * 0))
            if KIND >= LARGEST:
                size = tl.abs(v).to(best.dtype)
                result = tl.where((size == best) | ((size != size) & (best != best)), result, 0)
        if out.dtype.element_ty == tl.float16 or out.dtype.element_ty == tl.bfloat16:
            result = result.to(tl.float32)
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)
