r"""Standardizing the specified entries of each row: each program handles whole rows.

A row is read twice, for its sums and its results; it is still cached the second time. Where rows are
so few and long that whole ones would leave the device idle, the sums are computed in pieces, and results are written in
a separate pass. The gradients of weight and bias are sums over the rows: one more pass.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels import normalization as family
from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.cuda.lines import blend, finish_sums, line, pair_sums, start_sums
from maskgrad.kernels.cuda.loops import Accumulator, reduce
from maskgrad.kernels.cuda.tiles import restored, table
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.variance.cuda import MOMENTS, central_squares, moments


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
    found, view = reduce(
        _STANDARDIZE, mask, (values, *(x.expand(values.shape) for x in (weight, bias) if x is not None)), row,
        (wide, wide, torch.int64), out=out, of=_standardized, numbers=(eps,), whole=True,
        kind=centered + 2 * (weight is not None) + 4 * (bias is not None),
    )  # fmt: skip
    mean, scale, count = (restored(x, view, True) for x in found)
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
    operands = (values, *(x.expand(values.shape) for x in (grad, weight) if x is not None))
    reduce(
        _BACKWARD, mask, operands, row, (), few=(mean, scale, count), out=out, of=_backward, whole=True,
        kind=centered + 2 * (weight is not None),
    )  # fmt: skip
    return out, of_weight, of_bias


def _in_pieces(values: Tensor, mask: Tensor, row: range) -> bool:
    """Return whether there are so few and long rows that they must be cut into pieces."""
    return table((values, mask), row).tile.pieces > 1


@compiled
def _finish(state: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """Mean, scale and count. An empty row has scale 1, as eps may be 0."""
    squares, mean, count = moments(state, n, KIND)
    variance = squares / tl.maximum(count, 1.0) + n[0].to(tl.float64)
    return mean, 1.0 / tl.sqrt(tl.where(count > 0, variance, 1.0)), count


@compiled
def _standardized(x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """The result from v, w and b if present, and the statistics."""
    found: tl.constexpr = len(x) - 3
    y = (x[0] - x[found]) * x[found + 1]
    if KIND & 2:
        y = y * x[1]
    if KIND & 4:
        y = y + x[found - 1]
    return y


@compiled
def _step(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr
) -> tl.tensor:
    """The terms of the sums from v, g, w if present, and the row's mean, scale and count."""
    g = x[1]
    if KIND & 2:
        g = g * x[2]
    return state[0] + tl.where(there, g, 0), state[1] + tl.where(there, g * (x[0] - x[len(x) - 3]), 0)


@compiled
def _backward(x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """The gradient from the same, and the sums."""
    row: tl.constexpr = len(x) - 5
    g = x[1]
    if KIND & 2:
        g = g * x[2]
    wide = x[row + 1].to(tl.float64)
    number = tl.maximum(x[row + 2].to(tl.float64), 1.0)
    slope = (wide * wide * wide * x[row + 4] / number).to(g.dtype)
    result = g * x[row + 1] - (x[0] - x[row]) * slope
    if KIND & 1:
        result = result - (wide * x[row + 3] / number).to(g.dtype)
    return result


_STANDARDIZE = Accumulator(MOMENTS.start, MOMENTS.step, _finish)
_BACKWARD = Accumulator(start_sums, _step, finish_sums)
