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
from maskgrad.kernels.cuda.tiles import (
    entrywise,
    fetch,
    place,
    position,
    reduction,
    restored,
    table,
    tile,
    tile_place,
)


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
    bias: tl.tensor, rows: tl.tensor, row_sizes: tl.tensor, row_strides: tl.tensor, length: tl.tensor, sizes: tl.tensor,
    strides: tl.tensor, pieces: tl.tensor, WEIGHTED: tl.constexpr, BIASED: tl.constexpr, ACC: tl.constexpr,
    INDEX: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    m = fetch(mask, 2, row, row_sizes, row_strides, column, sizes, strides, inside) != 0
    v = fetch(values, 1, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    c = fetch(center, 3, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    y = (v - c) * fetch(scale, 4, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    if WEIGHTED:
        y = y * fetch(weight, 5, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    if BIASED:
        y = y + fetch(bias, 6, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    place = tile_place(0, row, row_sizes, row_strides, column, sizes, strides)
    tl.store(out + place, tl.where(m, y, 0).to(out.dtype.element_ty), mask=inside)


@compiled
def _blend(
    out: tl.tensor, grad: tl.tensor, values: tl.tensor, mask: tl.tensor, center: tl.tensor, scale: tl.tensor,
    weight: tl.tensor, slope: tl.tensor, offset: tl.tensor, rows: tl.tensor, row_sizes: tl.tensor,
    row_strides: tl.tensor, length: tl.tensor, sizes: tl.tensor, strides: tl.tensor, pieces: tl.tensor,
    WEIGHTED: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    m = fetch(mask, 3, row, row_sizes, row_strides, column, sizes, strides, inside) != 0
    g = fetch(grad, 1, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    v = fetch(values, 2, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    c = fetch(center, 4, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    if WEIGHTED:
        g = g * fetch(weight, 6, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    g = g * fetch(scale, 5, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    d = fetch(slope, 7, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    result = (
        g
        + (v - c) * d
        + fetch(offset, 8, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    )
    place = tile_place(0, row, row_sizes, row_strides, column, sizes, strides)
    tl.store(out + place, tl.where(m, result, 0).to(out.dtype.element_ty), mask=inside)


@compiled
def _pair_sums(
    values: tl.tensor, grad: tl.tensor, mask: tl.tensor, center: tl.tensor, factor: tl.tensor, sums: tl.tensor,
    products: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor, kept_strides: tl.tensor, reduced: tl.tensor,
    sizes: tl.tensor, strides: tl.tensor, piece: tl.tensor, pieces: tl.tensor, FACTORED: tl.constexpr,
    BOTH: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    k, start, stop, to = position(reduced, piece, pieces, INDEX, KEPT)
    v_row = place(k, kept_sizes, kept_strides, 0)[:, None]
    g_row = place(k, kept_sizes, kept_strides, 1)[:, None]
    m_row = place(k, kept_sizes, kept_strides, 2)[:, None]
    c_row = place(k, kept_sizes, kept_strides, 3)[:, None]
    f_row = place(k, kept_sizes, kept_strides, 4)[:, None]
    total = tl.zeros((KEPT, REDUCED), ACC)
    product = tl.zeros((KEPT, REDUCED), ACC)
    for first in range(start, stop, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = (k < kept)[:, None] & (r < stop)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, strides, 2)[None, :], mask=inside, other=0) != 0
        g = tl.load(grad + g_row + place(r, sizes, strides, 1)[None, :], mask=inside, other=0).to(ACC)
        v = tl.load(values + v_row + place(r, sizes, strides, 0)[None, :], mask=inside, other=0).to(ACC)
        d = v - tl.load(center + c_row + place(r, sizes, strides, 3)[None, :], mask=inside, other=0).to(ACC)
        if FACTORED:
            f = tl.load(factor + f_row + place(r, sizes, strides, 4)[None, :], mask=inside, other=0).to(ACC)
            if BOTH:
                g = g * f
            else:
                d = d * f
        total += tl.where(m, g, 0)
        product += tl.where(m, g * d, 0)
    tl.store(sums + to, tl.sum(total.to(tl.float64), axis=1), mask=k < kept)
    tl.store(products + to, tl.sum(product.to(tl.float64), axis=1), mask=k < kept)
