r"""Softmax and logsumexp of the specified entries: one program takes whole slices.

A slice is walked three times (largest entry, sum of the powers, results); what it holds is still near after the first
walk. What PyTorch gives on the specified entries stands, NaN included.
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
from maskgrad.kernels.kernel import HALVES


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
    result, present = logsumexp(values, mask, dim, keepdim)
    return result.to(values.dtype), present


def logsumexp(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """:func:`masked_logsumexp`, not rounded to halves."""
    view = table((values, mask), dim, whole=True)
    dtype = torch.float32 if values.dtype in HALVES else values.dtype
    out = torch.empty(view.kept.number, dtype=dtype, device=values.device)
    present = torch.empty(view.kept.number, dtype=torch.bool, device=values.device)
    tensors = values.detach(), mask.view(torch.int8)
    reduction(_logsumexp, view, tensors, (out, present.view(torch.int8)), ACC=precision(values.dtype))
    return restored(out, view, keepdim), restored(present, view, keepdim)


def masked_logsumexp_backward(grad: Tensor, values: Tensor, result: Tensor, mask: Tensor) -> Tensor:
    out = torch.empty_like(values, requires_grad=False)
    grad, result = (x.detach().expand(values.shape) for x in (grad, result))
    entrywise(
        _logsumexp_backward, out, values.detach(), grad, result, mask.view(torch.int8), ACC=precision(values.dtype)
    )  # fmt: skip
    return out


def _walk(
    kernel: object, tensors: tuple[Tensor, ...], mask: Tensor, dim: tuple[int], **constants: object
) -> None:
    """Run ``kernel`` on the slices of ``tensors`` (all of one shape; the last is written) along ``dim``."""
    every = (*tensors, mask.view(torch.int8))
    reduction(kernel, table(every, dim, whole=True), every, (), ACC=precision(tensors[0].dtype), **constants)


@compiled
def largest_and_sum(
    values: tl.tensor, mask: tl.tensor, v_row: tl.tensor, m_row: tl.tensor, inside_row: tl.tensor, reduced: tl.tensor,
    sizes: tl.tensor, strides: tl.tensor, MASK: tl.constexpr, FINITE: tl.constexpr, ACC: tl.constexpr,
    KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The largest specified entry of each slice, the sum of the powers of all less that one, and whether there is any.

    ``FINITE``: nothing is taken off where the largest is infinite, as in torch.logsumexp.
    """
    best = tl.full((KEPT, REDUCED), float("-inf"), ACC)
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, strides, MASK)[None, :], mask=inside, other=0) != 0
        v = tl.load(values + v_row + place(r, sizes, strides, 0)[None, :], mask=inside, other=0).to(ACC)
        best = tl.where(m & (v > best), v, best)  # no NaN enters: it remains an entry, and spoils the sum
    largest = tl.max(best, axis=1)
    if FINITE:
        largest = tl.where((largest == float("inf")) | (largest == float("-inf")), 0, largest)
    total = tl.zeros((KEPT, REDUCED), tl.float64)
    number = tl.zeros((KEPT, REDUCED), tl.int32)
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, strides, MASK)[None, :], mask=inside, other=0) != 0
        v = tl.load(values + v_row + place(r, sizes, strides, 0)[None, :], mask=inside, other=0).to(ACC)
        total += tl.where(m, tl.exp(v - largest[:, None]).to(tl.float64), 0)
        number += m.to(tl.int32)
    return largest, tl.sum(total, axis=1), tl.max(number, axis=1)


@compiled
def _softmax(
    values: tl.tensor, out: tl.tensor, mask: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor, kept_strides: tl.tensor,
    reduced: tl.tensor, sizes: tl.tensor, strides: tl.tensor, piece: tl.tensor, pieces: tl.tensor,
    LOGARITHM: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    k = position(reduced, piece, pieces, INDEX, KEPT)[0]
    v_row = place(k, kept_sizes, kept_strides, 0)[:, None]
    m_row = place(k, kept_sizes, kept_strides, 2)[:, None]
    o_row = place(k, kept_sizes, kept_strides, 1)[:, None]
    inside_row = (k < kept)[:, None]
    found = largest_and_sum(
        values, mask, v_row, m_row, inside_row, reduced, sizes, strides, 2, False, ACC, KEPT, REDUCED
    )  # fmt: skip
    largest = found[0][:, None]
    share = found[1].to(ACC)[:, None]
    if LOGARITHM:
        share = tl.log(share)
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, strides, 2)[None, :], mask=inside, other=0) != 0
        shifted = (
            tl.load(values + v_row + place(r, sizes, strides, 0)[None, :], mask=inside, other=0).to(ACC)
            - largest
        )
        result = shifted - share if LOGARITHM else tl.exp(shifted) / share
        result = tl.where(m, result, float("-inf") if LOGARITHM else 0.0)
        tl.store(
            out + o_row + place(r, sizes, strides, 1)[None, :], result.to(out.dtype.element_ty), mask=inside
        )


@compiled
def _softmax_backward(
    soft: tl.tensor, grad: tl.tensor, out: tl.tensor, mask: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor,
    kept_strides: tl.tensor, reduced: tl.tensor, sizes: tl.tensor, strides: tl.tensor, piece: tl.tensor,
    pieces: tl.tensor, LOGARITHM: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr,
    REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    k = position(reduced, piece, pieces, INDEX, KEPT)[0]
    y_row = place(k, kept_sizes, kept_strides, 0)[:, None]
    g_row = place(k, kept_sizes, kept_strides, 1)[:, None]
    m_row = place(k, kept_sizes, kept_strides, 3)[:, None]
    o_row = place(k, kept_sizes, kept_strides, 2)[:, None]
    inside_row = (k < kept)[:, None]
    total = tl.zeros((KEPT, REDUCED), tl.float64)
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, strides, 3)[None, :], mask=inside, other=0) != 0
        g = tl.load(grad + g_row + place(r, sizes, strides, 1)[None, :], mask=inside, other=0).to(tl.float64)
        if not LOGARITHM:
            g = g * tl.load(soft + y_row + place(r, sizes, strides, 0)[None, :], mask=inside, other=0).to(
                tl.float64
            )
        total += tl.where(m, g, 0)
    added = tl.sum(total, axis=1).to(ACC)[:, None]
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, strides, 3)[None, :], mask=inside, other=0) != 0
        g = tl.load(grad + g_row + place(r, sizes, strides, 1)[None, :], mask=inside, other=0).to(ACC)
        y = tl.load(soft + y_row + place(r, sizes, strides, 0)[None, :], mask=inside, other=0).to(ACC)
        result = g - tl.exp(y) * added if LOGARITHM else y * (g - added)
        result = tl.where(m, result, 0)
        tl.store(
            out + o_row + place(r, sizes, strides, 2)[None, :], result.to(out.dtype.element_ty), mask=inside
        )


@compiled
def _logsumexp(
    values: tl.tensor, mask: tl.tensor, out: tl.tensor, present: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor,
    kept_strides: tl.tensor, reduced: tl.tensor, sizes: tl.tensor, strides: tl.tensor, piece: tl.tensor,
    pieces: tl.tensor, ACC: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    k = position(reduced, piece, pieces, INDEX, KEPT)[0]
    found = largest_and_sum(
        values, mask, place(k, kept_sizes, kept_strides, 0)[:, None], place(k, kept_sizes, kept_strides, 1)[:, None],
        (k < kept)[:, None], reduced, sizes, strides, 1, True, ACC, KEPT, REDUCED,
    )  # fmt: skip
    result = found[0] + tl.log(found[1].to(ACC))
    tl.store(out + k, result.to(out.dtype.element_ty), mask=k < kept)
    tl.store(present + k, (found[2] > 0).to(tl.int8), mask=k < kept)


@compiled
def _logsumexp_backward(
    out: tl.tensor, values: tl.tensor, grad: tl.tensor, result: tl.tensor, mask: tl.tensor, rows: tl.tensor,
    row_sizes: tl.tensor, row_strides: tl.tensor, length: tl.tensor, sizes: tl.tensor, strides: tl.tensor,
    pieces: tl.tensor, ACC: tl.constexpr, INDEX: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
) -> None:  # fmt: skip
    row, column, inside = tile(rows, length, pieces, INDEX, TALL, WIDE)
    m = fetch(mask, 4, row, row_sizes, row_strides, column, sizes, strides, inside) != 0
    v = fetch(values, 1, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    g = fetch(grad, 2, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    r = fetch(result, 3, row, row_sizes, row_strides, column, sizes, strides, inside).to(ACC)
    place = tile_place(0, row, row_sizes, row_strides, column, sizes, strides)
    tl.store(out + place, tl.where(m, tl.exp(v - r) * g, 0).to(out.dtype.element_ty), mask=inside)
