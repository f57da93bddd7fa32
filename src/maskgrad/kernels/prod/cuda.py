r"""Products of the specified entries, and their gradient: one pass over values and mask each way.

.. math:: P = \prod_j x_j^{m_j}, \qquad \frac{\partial P}{\partial x_i} = m_i \prod_{j \ne i} x_j^{m_j}

Each thread multiplies its factors in the type of the values (halves in float32, integers in int64), zeros apart, and
the threads' products are multiplied. ``dull`` is the sum of 0 * x: NaN if a factor is inf or NaN, else 0, which is
the product as soon as one factor is zero. It tells such a product from one whose other factors overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled, precision
from maskgrad.kernels.cuda.tiles import entrywise, place, reduction, restored, table, tile, tile_place
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.segments.cuda import places_of, walk_segments


def masked_prod(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    values = values.detach()
    if not values.is_floating_point():
        dtype = wide = torch.int64
        source = values.view(torch.uint8) if values.dtype == torch.bool else values
    else:
        dtype, wide, source = values.dtype, torch.float32 if values.dtype in HALVES else values.dtype, values
    bits = mask.view(torch.int8)
    view = table((source, bits), dim)
    pieces = view.tile.pieces
    size = view.kept.number * pieces
    rest, dull = (torch.empty(size, dtype=wide, device=values.device) for _ in range(2))
    zeros, count = (torch.empty(size, dtype=torch.int64, device=values.device) for _ in range(2))
    reduction(_products, view, (source, bits), (rest, dull, zeros, count), ACC=precision(values.dtype))
    if pieces > 1:
        rest = rest.view(-1, pieces).prod(1)
        dull, zeros, count = (x.view(-1, pieces).sum(1) for x in (dull, zeros, count))
    rest, dull, zeros, count = (restored(x, view, keepdim) for x in (rest, dull, zeros, count))
    return torch.where(zeros > 0, dull, rest).to(dtype), rest, zeros, count


def masked_prod_backward(grad: Tensor, values: Tensor, rest: Tensor, zeros: Tensor, mask: Tensor) -> Tensor:
    values, rest = values.detach(), rest.detach()
    out = torch.empty_like(values)
    single = torch.where(zeros > 1, 0, rest)  # two zeros and more: nothing is left of any derivative
    few = (single, grad.detach().to(rest.dtype), zeros.clamp(max=1).to(torch.int8))
    entrywise(
        _backward, out, values, *(x.expand(values.shape) for x in few), mask.view(torch.int8),
        ACC=precision(values.dtype),
    )  # fmt: skip
    return out


@compiled
def _times(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a * b


@compiled
def _products(
    values: tl.tensor, mask: tl.tensor, rest: tl.tensor, dull: tl.tensor, zeros: tl.tensor, count: tl.tensor,
    kept: tl.tensor, kept_sizes: tl.tensor, v_kept: tl.tensor, m_kept: tl.tensor, reduced: tl.tensor,
    sizes: tl.tensor, v_steps: tl.tensor, m_steps: tl.tensor, piece: tl.tensor, pieces: tl.tensor,
    ACC: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    program = tl.program_id(0).to(INDEX)
    k = program // pieces * KEPT + tl.arange(0, KEPT)
    start = program % pieces * piece
    stop = tl.minimum(start + piece, reduced)
    v_row = place(k, kept_sizes, v_kept)[:, None]
    m_row = place(k, kept_sizes, m_kept)[:, None]
    product = tl.full((KEPT, REDUCED), 1, ACC)
    nothing = tl.zeros((KEPT, REDUCED), ACC)
    absent = tl.zeros((KEPT, REDUCED), tl.int32)
    number = tl.zeros((KEPT, REDUCED), tl.int32)
    for first in range(start, stop, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = (k < kept)[:, None] & (r < stop)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        v = tl.load(values + v_row + place(r, sizes, v_steps)[None, :], mask=inside, other=0).to(ACC)
        product *= tl.where(m & (v != 0), v, 1)
        nothing += tl.where(m, v * 0, 0)
        absent += (m & (v == 0)).to(tl.int32)
        number += m.to(tl.int32)
    to = k * pieces + program % pieces
    tl.store(rest + to, tl.reduce(product, 1, _times), mask=k < kept)
    tl.store(dull + to, tl.sum(nothing, axis=1), mask=k < kept)
    tl.store(zeros + to, tl.sum(absent.to(tl.int64), axis=1), mask=k < kept)
    tl.store(count + to, tl.sum(number.to(tl.int64), axis=1), mask=k < kept)


@compiled
def _backward(
    out: tl.tensor, values: tl.tensor, rest: tl.tensor, grad: tl.tensor, zeros: tl.tensor, mask: tl.tensor,
    rows: tl.tensor, row_sizes: tl.tensor, o_rows: tl.tensor, v_rows: tl.tensor, r_rows: tl.tensor,
    g_rows: tl.tensor, z_rows: tl.tensor, m_rows: tl.tensor, length: tl.tensor, sizes: tl.tensor,
    o_steps: tl.tensor, v_steps: tl.tensor, r_steps: tl.tensor, g_steps: tl.tensor, z_steps: tl.tensor,
    m_steps: tl.tensor, pieces: tl.tensor, ACC: tl.constexpr, INDEX: tl.constexpr, TALL: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:  # fmt: skip
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    m_place = tile_place(row, row_sizes, m_rows, column, sizes, m_steps)
    v_place = tile_place(row, row_sizes, v_rows, column, sizes, v_steps)
    r_place = tile_place(row, row_sizes, r_rows, column, sizes, r_steps)
    g_place = tile_place(row, row_sizes, g_rows, column, sizes, g_steps)
    z_place = tile_place(row, row_sizes, z_rows, column, sizes, z_steps)
    o_place = tile_place(row, row_sizes, o_rows, column, sizes, o_steps)
    m = tl.load(mask + m_place, mask=inside, other=0) != 0
    v = tl.load(values + v_place, mask=inside, other=0).to(ACC)
    r = tl.load(rest + r_place, mask=inside, other=0).to(ACC)
    g = tl.load(grad + g_place, mask=inside, other=0).to(ACC)
    z = tl.load(zeros + z_place, mask=inside, other=0)
    others = tl.where(z == 0, r / tl.where(v == 0, 1, v), tl.where(v == 0, r, 0))
    tl.store(out + o_place, tl.where(m, g * others, 0).to(out.dtype.element_ty), mask=inside)


def segment_prod(values: Tensor, pointers: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    values = values.detach().contiguous()
    exact = values.is_floating_point()
    dtype = torch.promote_types(values.dtype, torch.float32) if exact else torch.int64
    source = values.view(torch.uint8) if values.dtype == torch.bool else values
    shape, wide = (len(pointers) - 1, *values.shape[1:]), torch.float64 if exact else torch.int64
    rest, dull, zeros = (values.new_empty(shape, dtype=d) for d in (wide, wide, torch.int64))
    walk_segments(
        _segment_products, source, pointers, order, len(values), (source, rest, dull, zeros),
        ACC=tl.float64 if exact else tl.int64,
    )  # fmt: skip
    product = torch.where(zeros > 0, dull, rest).to(dtype)
    return product, rest.float() if values.dtype in HALVES else rest, zeros


def segment_prod_backward(
    grad: Tensor, values: Tensor, rest: Tensor, zeros: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    values = values.detach().contiguous()
    out = torch.empty_like(values)
    share = (rest.detach().double() * grad.detach()).contiguous()
    walk_segments(
        _segment_backward, values, pointers, order, len(values), (values, share, zeros.contiguous(), out)
    )
    return out


@compiled
def _segment_products(
    values: tl.tensor, rest: tl.tensor, dull: tl.tensor, zeros: tl.tensor, pointers: tl.tensor, order: tl.tensor,
    number: tl.tensor, width: tl.tensor, ACC: tl.constexpr, ORDERED: tl.constexpr, INDEX: tl.constexpr,
    LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    product = tl.full((LANES, STEP), 1, ACC)
    nothing = tl.zeros((LANES, STEP), ACC)
    absent = tl.zeros((LANES, STEP), tl.int64)
    for done in range(0, tl.max(stop - start, axis=0), STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        v = tl.where(inside, tl.load(values + place, mask=inside, other=0).to(ACC), 1)
        product *= tl.where(v == 0, 1, v)
        nothing += v * 0
        absent += (v == 0).to(tl.int64)
    tl.store(rest + lane, tl.reduce(product, 1, _times), mask=lane < number)
    tl.store(dull + lane, tl.sum(nothing, axis=1), mask=lane < number)
    tl.store(zeros + lane, tl.sum(absent, axis=1), mask=lane < number)


@compiled
def _segment_backward(
    values: tl.tensor, share: tl.tensor, zeros: tl.tensor, out: tl.tensor, pointers: tl.tensor, order: tl.tensor,
    number: tl.tensor, width: tl.tensor, ORDERED: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr,
    STEP: tl.constexpr,
) -> None:  # fmt: skip
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    every = tl.load(share + lane, mask=lane < number, other=0)[:, None]
    few = tl.load(zeros + lane, mask=lane < number, other=0)[:, None]
    for done in range(0, tl.max(stop - start, axis=0), STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        v = tl.load(values + place, mask=inside, other=0).to(tl.float64)
        others = every / tl.where(v == 0, 1, v)
        result = tl.where(few == 0, others, tl.where((few == 1) & (v == 0), every, 0))
        if out.dtype.element_ty == tl.float16 or out.dtype.element_ty == tl.bfloat16:
            result = result.to(tl.float32)
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)
