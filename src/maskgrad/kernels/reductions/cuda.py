r"""Sums, means and counts over the specified entries: one pass over values and mask.

.. math:: s_o = \sum_r m_{or} v_{or}, \qquad n_o = \sum_r m_{or}, \qquad \text{mean}_o = s_o / \max(1, n_o)

:math:`m v` is a selection, never a product (0 * NaN is NaN). Each thread adds in the type of the values (half precision
in float32), and partial results of threads are added in float64: less rounding than in ``torch.sum``. Long reductions
are cut into pieces that are added afterwards; where they are cut depends on shapes and strides alone, and nothing is
added atomically, so results are the same in every run.

Complex values are left to the reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels import reductions as family
from maskgrad.kernels.cuda.compiler import compiled, precision
from maskgrad.kernels.cuda.tiles import place, reduction, restored, table
from maskgrad.kernels.filling.cuda import select
from maskgrad.kernels.reductions import mean_dtype, some, storable, sum_dtype

# Dtypes that a kernel writes; results are converted to others afterwards.
_WRITABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)


def masked_count(mask: Tensor, dim: Sequence[int], keepdim: bool) -> Tensor:
    return _reduce(None, mask, dim, keepdim, torch.int64, mean=False)[1]


def masked_sum(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    result = sum_dtype(values.dtype, dtype)
    if result.is_complex:
        return family.masked_sum.reference(values, mask, tuple(dim), keepdim, dtype)
    total, count = _reduce(_readable(values, result), mask, dim, keepdim, result, mean=False)
    return total, some(count, mask, dim, keepdim)


def masked_mean(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    result = mean_dtype(values.dtype, dtype)
    if result.is_complex:
        return family.masked_mean.reference(values, mask, tuple(dim), keepdim, dtype)
    return _reduce(_readable(values, result), mask, dim, keepdim, result, mean=True)


def masked_expand(grad: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.empty(mask.shape, dtype=dtype, device=mask.device)
    select(out, grad.detach().to(dtype).expand(mask.shape), mask, 0)
    return out


def _readable(values: Tensor, dtype: torch.dtype) -> Tensor:
    """As :func:`storable`, Booleans as integers."""
    values = storable(values.detach(), dtype)
    return values.view(torch.uint8) if values.dtype == torch.bool else values


def _reduce(
    values: Tensor | None, mask: Tensor, dim: Sequence[int], keepdim: bool, dtype: torch.dtype, mean: bool
) -> tuple[Tensor, Tensor]:
    """Sums or means, and counts; counts alone where ``values`` is None."""
    bits = mask.view(torch.int8)
    source = bits if values is None else values
    view = table((source, bits), dim)
    pieces = view.tile.pieces
    exact = source.dtype == torch.float64 or dtype == torch.float64
    wide = tl.float64 if source.is_floating_point() else tl.int64
    stored = dtype if dtype in _WRITABLE else torch.int64
    if pieces > 1:
        stored = torch.float64 if source.is_floating_point() else torch.int64
    count = torch.empty(view.kept.number * pieces, dtype=torch.int64, device=mask.device)
    out = count if values is None else torch.empty(len(count), dtype=stored, device=mask.device)
    reduction(
        _sums, view, (source, bits), (out, count), MEAN=mean and pieces == 1, COUNT_ONLY=values is None,
        NARROW=tl.float64 if exact else precision(source.dtype), WIDE=wide,
    )  # fmt: skip
    if pieces > 1:
        out, count = (x.view(-1, pieces).sum(1) for x in (out, count))
        if mean:
            out = out / count.clamp(min=1)
    return restored(out.to(dtype), view, keepdim), restored(count, view, keepdim)


@compiled
def _sums(
    values: tl.tensor, mask: tl.tensor, out: tl.tensor, count: tl.tensor, kept: tl.tensor, kept_sizes: tl.tensor,
    v_kept: tl.tensor, m_kept: tl.tensor, reduced: tl.tensor, sizes: tl.tensor, v_steps: tl.tensor,
    m_steps: tl.tensor, piece: tl.tensor, pieces: tl.tensor, MEAN: tl.constexpr, COUNT_ONLY: tl.constexpr,
    NARROW: tl.constexpr, WIDE: tl.constexpr, INDEX: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr,
) -> None:  # fmt: skip
    """Program p adds piece p % pieces of the results KEPT * (p // pieces), ... ."""
    program = tl.program_id(0).to(INDEX)
    k = program // pieces * KEPT + tl.arange(0, KEPT)
    start = program % pieces * piece
    stop = tl.minimum(start + piece, reduced)
    v_row = place(k, kept_sizes, v_kept)[:, None]
    m_row = place(k, kept_sizes, m_kept)[:, None]
    total = tl.zeros((KEPT, REDUCED), NARROW)
    number = tl.zeros((KEPT, REDUCED), tl.int32)
    for first in range(start, stop, REDUCED):
        r = first + tl.arange(0, REDUCED)
        inside = (k < kept)[:, None] & (r < stop)[None, :]
        m = tl.load(mask + m_row + place(r, sizes, m_steps)[None, :], mask=inside, other=0) != 0
        number += m.to(tl.int32)
        if not COUNT_ONLY:
            v = tl.load(values + v_row + place(r, sizes, v_steps)[None, :], mask=inside, other=0)
            total += tl.where(m, v.to(NARROW), 0)
    n = tl.sum(number.to(tl.int64), axis=1)
    to = k * pieces + program % pieces
    tl.store(count + to, n, mask=k < kept)
    if not COUNT_ONLY:
        s = tl.sum(total.to(WIDE), axis=1)
        if MEAN:
            s = s / tl.maximum(n, 1)
        if out.dtype.element_ty == tl.float16 or out.dtype.element_ty == tl.bfloat16:
            s = s.to(tl.float32)
        tl.store(out + to, s.to(out.dtype.element_ty), mask=k < kept)
