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
from maskgrad.kernels.cuda.compiler import compiled, index_type, launch, precision
from maskgrad.kernels.cuda.tiles import entrywise, place, restored, table, tile, tile_place
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.reductions.cuda import masked_count

ZERO, ONE, TWO, INFINITE = (tl.constexpr(kind) for kind in range(4))


def masked_norm(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, ord: float
) -> tuple[Tensor, Tensor]:
    values = values.detach()
    if not values.numel() or not values.ndim or not dim or ord not in (0, 1, 2, math.inf):
        return family.masked_norm.reference(values, mask, tuple(dim), keepdim, ord)
    bits = mask.view(torch.int8)
    view = table((values, bits), dim)
    kept, reduced, tile = view.kept, view.reduced, view.tile
    out = torch.empty(kept.number * tile.pieces, dtype=torch.float64, device=values.device)
    present = torch.empty(len(out), dtype=torch.bool, device=values.device)
    launch(
        _norms, -(-kept.number // tile.kept) * tile.pieces, values, bits, out, present.view(torch.int8), kept.number,
        kept.sizes, *kept.strides, reduced.number, reduced.sizes, *reduced.strides, tile.piece, tile.pieces,
        KIND=_kind(ord), ACC=precision(values.dtype), INDEX=index_type(values, bits), KEPT=tile.kept,
        REDUCED=tile.reduced,
    )  # fmt: skip
    if tile.pieces > 1:
        parts, present = out.view(-1, tile.pieces), present.view(-1, tile.pieces).any(1)
        out = parts.amax(1) if ord == math.inf else parts.sum(1)
    out = out.sqrt() if ord == 2 else out
    return restored(out.to(values.dtype), view, keepdim), restored(present, view, keepdim)


def masked_norm_backward(grad: Tensor, values: Tensor, mask: Tensor, norm: Tensor, ord: float) -> Tensor:
    """As in the reference: one pass that writes the result; for inf two more that find and count who attains it."""
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


def _kind(ord: float) -> int:
    return 3 if ord == math.inf else int(ord)


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
