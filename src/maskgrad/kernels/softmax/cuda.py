r"""Softmax and logsumexp of the specified entries: one program takes whole slices.

.. math:: y_i = \frac{e^{x_i}}{\sum_j m_j e^{x_j}}, \qquad \ell = \log \sum_j m_j e^{x_j}, \qquad
          \bar x_i = y_i \Bigl(\bar y_i - \sum_j m_j y_j \bar y_j\Bigr)

A slice is walked three times (largest entry, sum of the powers, results); what it holds is still near after the first
walk. What PyTorch gives on the specified entries stands, NaN included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled, precision
from maskgrad.kernels.cuda.tiles import entrywise, place, reduction, restored, table, tile, tile_place
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.segments.cuda import places_of, walk_segments


def masked_softmax(values: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor:
    out = torch.empty_like(values, requires_grad=False)
    _walk(_softmax, (values.detach(), out), mask, (dim,), LOGARITHM=logarithm)
    return out


def masked_softmax_backward(grad: Tensor, output: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor:
    out = torch.empty_like(output, requires_grad=False)
    _walk(_softmax_backward, (output.detach(), grad.detach(), out), mask, (dim,), LOGARITHM=logarithm)
    return out


def masked_logsumexp(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool
) -> tuple[Tensor, Tensor]:
    view = table((values, mask), dim, whole=True)
    out = torch.empty(view.kept.number, dtype=values.dtype, device=values.device)
    present = torch.empty(view.kept.number, dtype=torch.bool, device=values.device)
    reduction(
        _logsumexp, view, (values.detach(), mask.view(torch.int8)), (out, present.view(torch.int8)),
        ACC=precision(values.dtype),
    )  # fmt: skip
    return restored(out, view, keepdim), restored(present, view, keepdim)


def masked_logsumexp_backward(grad: Tensor, values: Tensor, result: Tensor, mask: Tensor) -> Tensor:
    out = torch.empty_like(values, requires_grad=False)
    grad, result = (x.detach().expand(values.shape) for x in (grad, result))
    entrywise(
        _logsumexp_backward, out, values.detach(), grad, result, mask.view(torch.int8), ACC=precision(values.dtype)
    )  # fmt: skip
    return out


def _walk(
    kernel: object, tensors: tuple[Tensor, ...], mask: Tensor, dim: tuple[int], **constants: Any
) -> None:
    """Run ``kernel`` on the slices of ``tensors`` (all of one shape; the last is written) along ``dim``."""
    every = (*tensors, mask.view(torch.int8))
    reduction(kernel, table(every, dim, whole=True), every, (), ACC=precision(tensors[0].dtype), **constants)


@compiled
def largest_and_sum(
    values: tl.tensor, mask: tl.tensor, v_row: tl.tensor, m_row: tl.tensor, inside_row: tl.tensor, reduced: tl.tensor,
    sizes: tl.tensor, v_steps: tl.tensor, m_steps: tl.tensor, FINITE: tl.constexpr, ACC: tl.constexpr,
    KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The largest specified entry of each slice, the sum of the powers of all less that one, and whether there is any.

    ``FINITE``: nothing is taken off where the largest is infinite, as in torch.logsumexp.
    """
    best = tl.full((KEPT, REDUCED), float("-inf"), ACC)
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        v = tl.load(values + v_row + place(r, sizes, v_steps)[None, :], mask=inside, other=0).to(ACC)
        best = tl.where(m & (v > best), v, best)  # no NaN enters: it remains an entry, and spoils the sum
    largest = tl.max(best, axis=1)
    if FINITE:
        largest = tl.where((largest == float("inf")) | (largest == float("-inf")), 0, largest)
    total = tl.zeros((KEPT, REDUCED), tl.float64)
    number = tl.zeros((KEPT, REDUCED), tl.int32)
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        v = tl.load(values + v_row + place(r, sizes, v_steps)[None, :], mask=inside, other=0).to(ACC)
        total += tl.where(m, tl.exp(v - largest[:, None]).to(tl.float64), 0)
        number += m.to(tl.int32)
    return largest, tl.sum(total, axis=1), tl.max(number, axis=1)


@compiled
def _softmax(
    values: tl.tensor, out: tl.tensor, mask: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor, v_kept: tl.tensor,
    o_kept: tl.tensor, m_kept: tl.tensor, reduced: tl.tensor, sizes: tl.tensor, v_steps: tl.tensor,
    o_steps: tl.tensor, m_steps: tl.tensor, LOGARITHM: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr,
    KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    k = tl.program_id(0).to(INDEX) * KEPT + tl.arange(0, KEPT)
    v_row = place(k, kept_sizes, v_kept)[:, None]
    m_row = place(k, kept_sizes, m_kept)[:, None]
    o_row = place(k, kept_sizes, o_kept)[:, None]
    inside_row = (k < kept)[:, None]
    found = largest_and_sum(
        values, mask, v_row, m_row, inside_row, reduced, sizes, v_steps, m_steps, False, ACC, KEPT, REDUCED
    )  # fmt: skip
    largest = found[0][:, None]
    share = found[1].to(ACC)[:, None]
    if LOGARITHM:
        share = tl.log(share)
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        shifted = (
            tl.load(values + v_row + place(r, sizes, v_steps)[None, :], mask=inside, other=0).to(ACC)
            - largest
        )
        result = shifted - share if LOGARITHM else tl.exp(shifted) / share
        result = tl.where(m, result, float("-inf") if LOGARITHM else 0.0)
        tl.store(
            out + o_row + place(r, sizes, o_steps)[None, :], result.to(out.dtype.element_ty), mask=inside
        )


@compiled
def _softmax_backward(
    soft: tl.tensor, grad: tl.tensor, out: tl.tensor, mask: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor,
    y_kept: tl.tensor, g_kept: tl.tensor, o_kept: tl.tensor, m_kept: tl.tensor, reduced: tl.tensor, sizes: tl.tensor,
    y_steps: tl.tensor, g_steps: tl.tensor, o_steps: tl.tensor, m_steps: tl.tensor, LOGARITHM: tl.constexpr,
    ACC: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    k = tl.program_id(0).to(INDEX) * KEPT + tl.arange(0, KEPT)
    y_row = place(k, kept_sizes, y_kept)[:, None]
    g_row = place(k, kept_sizes, g_kept)[:, None]
    m_row = place(k, kept_sizes, m_kept)[:, None]
    o_row = place(k, kept_sizes, o_kept)[:, None]
    inside_row = (k < kept)[:, None]
    total = tl.zeros((KEPT, REDUCED), tl.float64)
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        g = tl.load(grad + g_row + place(r, sizes, g_steps)[None, :], mask=inside, other=0).to(tl.float64)
        if not LOGARITHM:
            g = g * tl.load(soft + y_row + place(r, sizes, y_steps)[None, :], mask=inside, other=0).to(
                tl.float64
            )
        total += tl.where(m, g, 0)
    added = tl.sum(total, axis=1).to(ACC)[:, None]
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        g = tl.load(grad + g_row + place(r, sizes, g_steps)[None, :], mask=inside, other=0).to(ACC)
        y = tl.load(soft + y_row + place(r, sizes, y_steps)[None, :], mask=inside, other=0).to(ACC)
        result = g - tl.exp(y) * added if LOGARITHM else y * (g - added)
        result = tl.where(m, result, 0)
        tl.store(
            out + o_row + place(r, sizes, o_steps)[None, :], result.to(out.dtype.element_ty), mask=inside
        )


@compiled
def _logsumexp(
    values: tl.tensor, mask: tl.tensor, out: tl.tensor, present: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor,
    v_kept: tl.tensor, m_kept: tl.tensor, reduced: tl.tensor, sizes: tl.tensor, v_steps: tl.tensor,
    m_steps: tl.tensor, ACC: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    k = tl.program_id(0).to(INDEX) * KEPT + tl.arange(0, KEPT)
    found = largest_and_sum(
        values, mask, place(k, kept_sizes, v_kept)[:, None], place(k, kept_sizes, m_kept)[:, None],
        (k < kept)[:, None], reduced, sizes, v_steps, m_steps, True, ACC, KEPT, REDUCED,
    )  # fmt: skip
    result = found[0] + tl.log(found[1].to(ACC))
    tl.store(out + k, result.to(out.dtype.element_ty), mask=k < kept)
    tl.store(present + k, (found[2] > 0).to(tl.int8), mask=k < kept)


@compiled
def _logsumexp_backward(
    out: tl.tensor, values: tl.tensor, grad: tl.tensor, result: tl.tensor, mask: tl.tensor, rows: tl.tensor,
    row_sizes: tl.tensor, o_rows: tl.tensor, v_rows: tl.tensor, g_rows: tl.tensor, r_rows: tl.tensor,
    m_rows: tl.tensor, length: tl.tensor, sizes: tl.tensor, o_steps: tl.tensor, v_steps: tl.tensor,
    g_steps: tl.tensor, r_steps: tl.tensor, m_steps: tl.tensor, pieces: tl.tensor, ACC: tl.constexpr,
    INDEX: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    m_place = tile_place(row, row_sizes, m_rows, column, sizes, m_steps)
    v_place = tile_place(row, row_sizes, v_rows, column, sizes, v_steps)
    g_place = tile_place(row, row_sizes, g_rows, column, sizes, g_steps)
    r_place = tile_place(row, row_sizes, r_rows, column, sizes, r_steps)
    o_place = tile_place(row, row_sizes, o_rows, column, sizes, o_steps)
    m = tl.load(mask + m_place, mask=inside, other=0) != 0
    v = tl.load(values + v_place, mask=inside, other=0).to(ACC)
    g = tl.load(grad + g_place, mask=inside, other=0).to(ACC)
    r = tl.load(result + r_place, mask=inside, other=0).to(ACC)
    tl.store(out + o_place, tl.where(m, tl.exp(v - r) * g, 0).to(out.dtype.element_ty), mask=inside)


def segment_logsumexp(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    values = values.detach().contiguous()
    dtype = torch.float32 if values.dtype in HALVES else values.dtype
    out = values.new_empty((len(pointers) - 1, *values.shape[1:]), dtype=dtype)
    walk_segments(
        _segment_logsumexp, values, pointers, order, len(values), (values, out), ACC=precision(values.dtype)
    )
    return out


def segment_logsumexp_backward(
    grad: Tensor, values: Tensor, result: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    values = values.detach().contiguous()
    out = torch.empty_like(values)
    walk_segments(
        _segment_logsumexp_backward, values, pointers, order, len(values),
        (values, grad.detach().contiguous(), result.detach().contiguous(), out), ACC=precision(values.dtype),
    )  # fmt: skip
    return out


@compiled
def _segment_logsumexp(
    values: tl.tensor, out: tl.tensor, pointers: tl.tensor, order: tl.tensor, number: tl.tensor, width: tl.tensor,
    ACC: tl.constexpr, ORDERED: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    """Two walks over a segment: the largest entry, and the sum of the powers, which a NaN spoils."""
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    longest = tl.max(stop - start, axis=0)
    best = tl.full((LANES, STEP), float("-inf"), ACC)
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        v = tl.load(values + place, mask=inside, other=float("-inf")).to(ACC)
        best = tl.where(v > best, v, best)
    shift = tl.max(best, axis=1)
    shift = tl.where(tl.abs(shift) == float("inf"), 0, shift)
    total = tl.zeros((LANES, STEP), tl.float64)
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        v = tl.load(values + place, mask=inside, other=0).to(ACC)
        total += tl.where(inside, tl.exp(v - shift[:, None]).to(tl.float64), 0)
    result = tl.log(tl.sum(total, axis=1).to(ACC)) + shift
    tl.store(out + lane, result.to(out.dtype.element_ty), mask=lane < number)


@compiled
def _segment_logsumexp_backward(
    values: tl.tensor, grad: tl.tensor, total: tl.tensor, out: tl.tensor, pointers: tl.tensor, order: tl.tensor,
    number: tl.tensor, width: tl.tensor, ACC: tl.constexpr, ORDERED: tl.constexpr, INDEX: tl.constexpr,
    LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    factor = tl.load(grad + lane, mask=lane < number, other=0)[:, None].to(ACC)
    whole = tl.load(total + lane, mask=lane < number, other=0)[:, None].to(ACC)
    for done in range(0, tl.max(stop - start, axis=0), STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        v = tl.load(values + place, mask=inside, other=0).to(ACC)
        result = tl.exp(v - whole) * factor
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)
