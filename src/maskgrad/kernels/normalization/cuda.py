r"""Standardizing the specified entries of each row: one program takes whole rows.

.. math:: y_i = (x_i - \bar x) s w_i + b_i, \qquad
          \frac{\partial L}{\partial x_i} = w_i s\,g_i - (x_i - \bar x)\, \frac{s^3}{n} \sum w g (x - \bar x)
          - \frac sn \sum w g

A row is walked twice, for its sums and its results; what it holds is still near after the first walk. Where rows are
so few and long that whole ones would leave the device idle, the sums are made of pieces, and results are written in
a pass of their own. The gradients of weight and bias are sums over the rows: one more pass.

Legend: v values, g gradient, m mask, w weight, b bias; c the place of a row among mean, scale and count.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels import normalization as family
from maskgrad.kernels.cuda.compiler import compiled, precision
from maskgrad.kernels.cuda.lines import blend, line, pair_sums, spread_over
from maskgrad.kernels.cuda.runs import number_of
from maskgrad.kernels.cuda.tiles import place, reduction, table
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.variance.cuda import central_squares, moments_of


def masked_layer_norm(
    values: Tensor,
    mask: Tensor,
    dims: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not dims:
        return family.masked_layer_norm.reference(values, mask, dims, weight, bias, eps, centered)
    row = range(values.ndim - dims, values.ndim)
    wide = torch.float32 if values.dtype in HALVES else values.dtype
    if _in_pieces(values, mask, row):
        squares, mean, count = central_squares(values, mask, row, True, centered)
        scale = torch.rsqrt(torch.where(count > 0, squares / count.clamp(min=1) + eps, 1)).to(wide)
        mean = mean.to(wide)
        return line(values, mask, mean, scale, weight, bias), mean, scale, count
    out = torch.empty_like(values, requires_grad=False)
    kept = (*values.shape[: values.ndim - dims], *(1,) * dims)
    mean, scale, count = (
        torch.empty(kept, dtype=dtype, device=values.device) for dtype in (wide, wide, torch.int64)
    )
    tensors = (
        values.detach(),
        out,
        mask.view(torch.int8),
        *(spread_over(x, values) for x in (weight, bias, mean)),
    )
    reduction(
        _standardize, table(tensors, row, whole=True), tensors, (scale, count), float(eps), walked=5,
        CENTERED=centered, WEIGHTED=weight is not None, BIASED=bias is not None, ACC=precision(values.dtype),
    )  # fmt: skip
    return out, mean, scale, count


def masked_layer_norm_backward(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    mean: Tensor,
    scale: Tensor,
    count: Tensor,
    dims: int,
    weight: Tensor | None,
    eps: float,
    centered: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if not dims:
        return family.masked_layer_norm_backward.reference(
            grad, values, mask, mean, scale, count, dims, weight, eps, centered
        )
    row = range(values.ndim - dims, values.ndim)
    mean, scale = mean.detach(), scale.detach()
    of_bias, of_weight = (
        x.view(values.shape[values.ndim - dims :])
        for x in pair_sums(grad, values, mask, mean, range(values.ndim - dims), scale)
    )
    if _in_pieces(values, mask, row):
        sums, products = pair_sums(grad, values, mask, mean, row, weight, both=True)
        number = count.clamp(min=1)
        offset = -scale * (sums / number) if centered else torch.zeros_like(scale)
        result = blend(grad, values, mask, mean, scale, weight, -(scale**3) * (products / number), offset)
        return result, of_weight, of_bias
    out = torch.empty_like(values, requires_grad=False)
    statistics = mean.contiguous(), scale.contiguous(), count.contiguous()
    tensors = (
        values.detach(), out, mask.view(torch.int8), *(spread_over(x, values) for x in (grad, weight, statistics[0]))
    )  # fmt: skip
    reduction(
        _standardize_backward, table(tensors, row, whole=True), tensors, statistics[1:], walked=5, CENTERED=centered,
        WEIGHTED=weight is not None, ACC=precision(values.dtype),
    )  # fmt: skip
    return out, of_weight, of_bias


def _in_pieces(values: Tensor, mask: Tensor, row: range) -> bool:
    """Whether rows are so few and so long that they are to be cut."""
    return table((values, mask), row).tile.pieces > 1


@compiled
def _standardize(
    values: tl.tensor, out: tl.tensor, mask: tl.tensor, weight: tl.tensor, bias: tl.tensor, mean: tl.tensor,
    scale: tl.tensor, count: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor, v_kept: tl.tensor, o_kept: tl.tensor,
    m_kept: tl.tensor, w_kept: tl.tensor, b_kept: tl.tensor, c_kept: tl.tensor, reduced: tl.tensor, sizes: tl.tensor,
    v_steps: tl.tensor, o_steps: tl.tensor, m_steps: tl.tensor, w_steps: tl.tensor, b_steps: tl.tensor,
    eps: tl.float64, CENTERED: tl.constexpr, WEIGHTED: tl.constexpr, BIASED: tl.constexpr, ACC: tl.constexpr,
    INDEX: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    k = tl.program_id(0).to(INDEX) * KEPT + tl.arange(0, KEPT)
    v_row = place(k, kept_sizes, v_kept)[:, None]
    m_row = place(k, kept_sizes, m_kept)[:, None]
    o_row = place(k, kept_sizes, o_kept)[:, None]
    c_row = place(k, kept_sizes, c_kept)
    inside_row = (k < kept)[:, None]
    found = moments_of(
        values, mask, v_row, m_row, inside_row, 0, reduced, sizes, v_steps, m_steps, CENTERED, ACC, KEPT, REDUCED
    )  # fmt: skip
    # A row of nothing has the scale 1, and eps may be 0.
    variance = found[2] / tl.maximum(found[0], 1.0) + number_of(eps, tl.float64)
    root = tl.sqrt(tl.where(found[0] > 0, variance, 1.0))
    c = found[1].to(ACC)
    s = (1.0 / root).to(ACC)
    tl.store(mean + c_row, c, mask=k < kept)
    tl.store(scale + c_row, s, mask=k < kept)
    tl.store(count + c_row, found[0].to(tl.int64), mask=k < kept)
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        v = tl.load(values + v_row + place(r, sizes, v_steps)[None, :], mask=inside, other=0).to(ACC)
        y = (v - c[:, None]) * s[:, None]
        # Parameters are those of an entry of the row, whichever row it is.
        if WEIGHTED:
            w = tl.load(weight + place(r, sizes, w_steps), mask=r < reduced, other=0).to(ACC)
            y = y * w[None, :]
        if BIASED:
            b = tl.load(bias + place(r, sizes, b_steps), mask=r < reduced, other=0).to(ACC)
            y = y + b[None, :]
        tl.store(
            out + o_row + place(r, sizes, o_steps)[None, :],
            tl.where(m, y, 0).to(out.dtype.element_ty),
            mask=inside,
        )


@compiled
def _standardize_backward(
    values: tl.tensor, out: tl.tensor, mask: tl.tensor, grad: tl.tensor, weight: tl.tensor, mean: tl.tensor,
    scale: tl.tensor, count: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor, v_kept: tl.tensor, o_kept: tl.tensor,
    m_kept: tl.tensor, g_kept: tl.tensor, w_kept: tl.tensor, c_kept: tl.tensor, reduced: tl.tensor, sizes: tl.tensor,
    v_steps: tl.tensor, o_steps: tl.tensor, m_steps: tl.tensor, g_steps: tl.tensor, w_steps: tl.tensor,
    CENTERED: tl.constexpr, WEIGHTED: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr,
    REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    k = tl.program_id(0).to(INDEX) * KEPT + tl.arange(0, KEPT)
    v_row = place(k, kept_sizes, v_kept)[:, None]
    g_row = place(k, kept_sizes, g_kept)[:, None]
    m_row = place(k, kept_sizes, m_kept)[:, None]
    o_row = place(k, kept_sizes, o_kept)[:, None]
    c_row = place(k, kept_sizes, c_kept)
    inside_row = (k < kept)[:, None]
    c = tl.load(mean + c_row, mask=k < kept, other=0).to(ACC)[:, None]
    s = tl.load(scale + c_row, mask=k < kept, other=0).to(ACC)
    n = tl.maximum(tl.load(count + c_row, mask=k < kept, other=0).to(tl.float64), 1.0)
    total = tl.zeros((KEPT, REDUCED), ACC)
    product = tl.zeros((KEPT, REDUCED), ACC)
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        v = tl.load(values + v_row + place(r, sizes, v_steps)[None, :], mask=inside, other=0).to(ACC)
        g = tl.load(grad + g_row + place(r, sizes, g_steps)[None, :], mask=inside, other=0).to(ACC)
        if WEIGHTED:
            w = tl.load(weight + place(r, sizes, w_steps), mask=r < reduced, other=0).to(ACC)
            g = g * w[None, :]
        total += tl.where(m, g, 0)
        product += tl.where(m, g * (v - c), 0)
    wide = s.to(tl.float64)
    slope = (wide * wide * wide * tl.sum(product.to(tl.float64), axis=1) / n).to(ACC)[:, None]
    offset = (wide * tl.sum(total.to(tl.float64), axis=1) / n).to(ACC)[:, None]
    for first in range(0, reduced, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = inside_row & (r < reduced)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        v = tl.load(values + v_row + place(r, sizes, v_steps)[None, :], mask=inside, other=0).to(ACC)
        g = tl.load(grad + g_row + place(r, sizes, g_steps)[None, :], mask=inside, other=0).to(ACC)
        if WEIGHTED:
            w = tl.load(weight + place(r, sizes, w_steps), mask=r < reduced, other=0).to(ACC)
            g = g * w[None, :]
        result = g * s[:, None] - (v - c) * slope
        if CENTERED:
            result = result - offset
        tl.store(
            out + o_row + place(r, sizes, o_steps)[None, :],
            tl.where(m, result, 0).to(out.dtype.element_ty),
            mask=inside,
        )
