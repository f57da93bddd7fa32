r"""Straight lines through the specified entries, and the sums that the derivatives of standardizing ask for.

.. math:: y = (x - c)\,s\,w + b, \qquad \bar x = \bar y\,w\,s + (x - c)\,d + o, \qquad
          \sum m\,\bar y f, \quad \sum m\,\bar y f\,(x - c)

All but :math:`x` and :math:`\bar y` are constants of a group or parameters: they are read where they lie, by strides
that are 0 where they are broadcast. Selections stand where products with :math:`m` are written. Each thread adds in the
type of the values (halves in float32), and what the threads have is added in float64.

Legend: v values, g gradient, m mask, c center, s scale, w weight, b bias, d slope, o offset, f factor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled, precision
from maskgrad.kernels.cuda.tiles import entrywise, place, reduction, restored, table, tile, tile_place


def spread_over(x: Tensor | None, values: Tensor) -> Tensor:
    """``x`` as broadcast to ``values``; the values themselves, which are then not read, for None."""
    return values.detach() if x is None else x.detach().expand(values.shape)


def line(
    values: Tensor, mask: Tensor, center: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """``(v - c) s w + b`` where the mask holds, else 0, in the type and layout of ``values``."""
    out = torch.empty_like(values, requires_grad=False)
    numbers = (spread_over(x, values) for x in (center, scale, weight, bias))
    entrywise(
        _line, out, values.detach(), mask.view(torch.int8), *numbers, WEIGHTED=weight is not None,
        BIASED=bias is not None, ACC=precision(values.dtype),
    )  # fmt: skip
    return out


def blend(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    center: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    slope: Tensor,
    offset: Tensor,
) -> Tensor:
    """``g w s + (v - c) d + o`` where the mask holds, else 0, in the type and layout of ``values``."""
    out = torch.empty_like(values, requires_grad=False)
    numbers = (spread_over(x, values) for x in (center, scale, weight, slope, offset))
    entrywise(
        _blend, out, spread_over(grad, values), values.detach(), mask.view(torch.int8), *numbers,
        WEIGHTED=weight is not None, ACC=precision(values.dtype),
    )  # fmt: skip
    return out


def pair_sums(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    center: Tensor,
    dim: Sequence[int],
    factor: Tensor | None = None,
    both: bool = False,
) -> tuple[Tensor, Tensor]:
    """The sums of ``g`` (times ``f``, for ``both``) and of ``g f (v - c)`` over ``dim``, which are kept.

    Their type is that of ``center``.
    """
    few = (spread_over(x, values) for x in (center, factor))
    tensors = values.detach(), spread_over(grad, values), mask.view(torch.int8), *few
    view = table(tensors, dim)
    pieces = view.tile.pieces
    sums, products = (
        torch.empty(view.kept.number * pieces, dtype=torch.float64, device=values.device) for _ in range(2)
    )
    reduction(
        _pair_sums, view, tensors, (sums, products), FACTORED=factor is not None,
        BOTH=both and factor is not None, ACC=precision(values.dtype),
    )  # fmt: skip
    found = (x.view(-1, pieces).sum(1) if pieces > 1 else x for x in (sums, products))
    first, second = (restored(x.to(center.dtype), view, True) for x in found)
    return first, second


@compiled
def _line(
    out: tl.tensor, values: tl.tensor, mask: tl.tensor, center: tl.tensor, scale: tl.tensor, weight: tl.tensor,
    bias: tl.tensor, rows: tl.tensor, row_sizes: tl.tensor, o_rows: tl.tensor, v_rows: tl.tensor, m_rows: tl.tensor,
    c_rows: tl.tensor, s_rows: tl.tensor, w_rows: tl.tensor, b_rows: tl.tensor, length: tl.tensor, sizes: tl.tensor,
    o_steps: tl.tensor, v_steps: tl.tensor, m_steps: tl.tensor, c_steps: tl.tensor, s_steps: tl.tensor,
    w_steps: tl.tensor, b_steps: tl.tensor, pieces: tl.tensor, WEIGHTED: tl.constexpr, BIASED: tl.constexpr,
    ACC: tl.constexpr, INDEX: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    o_place = tile_place(row, row_sizes, o_rows, column, sizes, o_steps)
    v_place = tile_place(row, row_sizes, v_rows, column, sizes, v_steps)
    m_place = tile_place(row, row_sizes, m_rows, column, sizes, m_steps)
    c_place = tile_place(row, row_sizes, c_rows, column, sizes, c_steps)
    s_place = tile_place(row, row_sizes, s_rows, column, sizes, s_steps)
    m = tl.load(mask + m_place, mask=inside, other=0) != 0
    v = tl.load(values + v_place, mask=inside, other=0).to(ACC)
    c = tl.load(center + c_place, mask=inside, other=0).to(ACC)
    y = (v - c) * tl.load(scale + s_place, mask=inside, other=0).to(ACC)
    if WEIGHTED:
        w_place = tile_place(row, row_sizes, w_rows, column, sizes, w_steps)
        y = y * tl.load(weight + w_place, mask=inside, other=0).to(ACC)
    if BIASED:
        b_place = tile_place(row, row_sizes, b_rows, column, sizes, b_steps)
        y = y + tl.load(bias + b_place, mask=inside, other=0).to(ACC)
    tl.store(out + o_place, tl.where(m, y, 0).to(out.dtype.element_ty), mask=inside)


@compiled
def _blend(
    out: tl.tensor, grad: tl.tensor, values: tl.tensor, mask: tl.tensor, center: tl.tensor, scale: tl.tensor,
    weight: tl.tensor, slope: tl.tensor, offset: tl.tensor, rows: tl.tensor, row_sizes: tl.tensor, o_rows: tl.tensor,
    g_rows: tl.tensor, v_rows: tl.tensor, m_rows: tl.tensor, c_rows: tl.tensor, s_rows: tl.tensor, w_rows: tl.tensor,
    d_rows: tl.tensor, e_rows: tl.tensor, length: tl.tensor, sizes: tl.tensor, o_steps: tl.tensor, g_steps: tl.tensor,
    v_steps: tl.tensor, m_steps: tl.tensor, c_steps: tl.tensor, s_steps: tl.tensor, w_steps: tl.tensor,
    d_steps: tl.tensor, e_steps: tl.tensor, pieces: tl.tensor, WEIGHTED: tl.constexpr, ACC: tl.constexpr,
    INDEX: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    o_place = tile_place(row, row_sizes, o_rows, column, sizes, o_steps)
    g_place = tile_place(row, row_sizes, g_rows, column, sizes, g_steps)
    v_place = tile_place(row, row_sizes, v_rows, column, sizes, v_steps)
    m_place = tile_place(row, row_sizes, m_rows, column, sizes, m_steps)
    c_place = tile_place(row, row_sizes, c_rows, column, sizes, c_steps)
    s_place = tile_place(row, row_sizes, s_rows, column, sizes, s_steps)
    d_place = tile_place(row, row_sizes, d_rows, column, sizes, d_steps)
    e_place = tile_place(row, row_sizes, e_rows, column, sizes, e_steps)
    m = tl.load(mask + m_place, mask=inside, other=0) != 0
    g = tl.load(grad + g_place, mask=inside, other=0).to(ACC)
    v = tl.load(values + v_place, mask=inside, other=0).to(ACC)
    c = tl.load(center + c_place, mask=inside, other=0).to(ACC)
    if WEIGHTED:
        w_place = tile_place(row, row_sizes, w_rows, column, sizes, w_steps)
        g = g * tl.load(weight + w_place, mask=inside, other=0).to(ACC)
    g = g * tl.load(scale + s_place, mask=inside, other=0).to(ACC)
    d = tl.load(slope + d_place, mask=inside, other=0).to(ACC)
    result = g + (v - c) * d + tl.load(offset + e_place, mask=inside, other=0).to(ACC)
    tl.store(out + o_place, tl.where(m, result, 0).to(out.dtype.element_ty), mask=inside)


@compiled
def _pair_sums(
    values: tl.tensor, grad: tl.tensor, mask: tl.tensor, center: tl.tensor, factor: tl.tensor, sums: tl.tensor,
    products: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor, v_kept: tl.tensor, g_kept: tl.tensor,
    m_kept: tl.tensor, c_kept: tl.tensor, f_kept: tl.tensor, reduced: tl.tensor, sizes: tl.tensor, v_steps: tl.tensor,
    g_steps: tl.tensor, m_steps: tl.tensor, c_steps: tl.tensor, f_steps: tl.tensor, piece: tl.tensor,
    pieces: tl.tensor, FACTORED: tl.constexpr, BOTH: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr,
    KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    """Program p adds piece p % pieces of the results KEPT * (p // pieces), ... ."""
    program = tl.program_id(0).to(INDEX)
    k = program // pieces * KEPT + tl.arange(0, KEPT)
    start = program % pieces * piece
    stop = tl.minimum(start + piece, reduced)
    v_row = place(k, kept_sizes, v_kept)[:, None]
    g_row = place(k, kept_sizes, g_kept)[:, None]
    m_row = place(k, kept_sizes, m_kept)[:, None]
    c_row = place(k, kept_sizes, c_kept)[:, None]
    f_row = place(k, kept_sizes, f_kept)[:, None]
    total = tl.zeros((KEPT, REDUCED), ACC)
    product = tl.zeros((KEPT, REDUCED), ACC)
    for first in range(start, stop, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = (k < kept)[:, None] & (r < stop)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        g = tl.load(grad + g_row + place(r, sizes, g_steps)[None, :], mask=inside, other=0).to(ACC)
        v = tl.load(values + v_row + place(r, sizes, v_steps)[None, :], mask=inside, other=0).to(ACC)
        d = v - tl.load(center + c_row + place(r, sizes, c_steps)[None, :], mask=inside, other=0).to(ACC)
        if FACTORED:
            f = tl.load(factor + f_row + place(r, sizes, f_steps)[None, :], mask=inside, other=0).to(ACC)
            if BOTH:
                g = g * f
            else:
                d = d * f
        total += tl.where(m, g, 0)
        product += tl.where(m, g * d, 0)
    to = k * pieces + program % pieces
    tl.store(sums + to, tl.sum(total.to(tl.float64), axis=1), mask=k < kept)
    tl.store(products + to, tl.sum(product.to(tl.float64), axis=1), mask=k < kept)
