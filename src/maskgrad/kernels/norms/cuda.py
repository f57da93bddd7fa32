r"""Vector norms of the specified entries, and their gradient: one pass over values and mask each way.

.. math:: s_p = \sum_i m_i |x_i|^p \ (p = 0, 1, 2), \qquad s_\infty = \max_i m_i |x_i|, \qquad
          \lVert x \rVert_2 = \sqrt{s_2}, \quad \lVert x \rVert_p = s_p \text{ otherwise}

Each thread adds in the type of the values (half precision in float32; of segments in float64), and the partial results
of threads are added in float64; nothing is scaled, as in PyTorch, so squares may overflow. In a maximum NaN wins.
The gradient of the largest absolute value is shared by ties, so another pass counts them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels import norms as family
from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.cuda.loops import WRITES, Accumulator, over_segments, reduce, write
from maskgrad.kernels.cuda.tiles import restored
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.reductions.cuda import masked_count

ZERO, ONE, TWO, POWER, LARGEST, SMALLEST = (tl.constexpr(kind) for kind in range(6))


def masked_norm(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, ord: float
) -> tuple[Tensor, Tensor]:
    if ord not in family.ORDERS:
        return family.masked_norm.reference(values.detach(), mask, tuple(dim), keepdim, ord)
    (parts, present), view = reduce(_NORM, mask, (values,), dim, (torch.float64, torch.bool), kind=_kind(ord))
    norm = parts.amax(1) if ord == math.inf else parts.sum(1)
    norm = norm.sqrt() if ord == 2 else norm
    return restored(norm.to(values.dtype), view, keepdim), restored(present.any(1), view, keepdim)


def masked_norm_backward(grad: Tensor, values: Tensor, mask: Tensor, norm: Tensor, ord: float) -> Tensor:
    """One pass that writes the result; for inf two more that find and count the ties."""
    grad, norm = grad.detach(), norm.detach()
    out = torch.empty_like(values, requires_grad=False)
    if ord == 0:
        return out.zero_()
    if values.dtype in HALVES:
        grad, norm = grad.float(), norm.float()
    if ord == 2:
        grad = torch.where(norm == 0, 0, grad / norm)
    if ord == math.inf:
        hits = torch.empty_like(values, dtype=torch.bool, requires_grad=False)
        write(_hit, hits.view(torch.int8), mask, values, norm)
        dim = [d for d, (n, k) in enumerate(zip(mask.shape, norm.shape, strict=True)) if n != k]
        mask, grad = hits, grad / masked_count(hits, dim, True).clamp(min=1)
    return write(_slope, out, mask, values, grad, kind=2 if ord == 2 else 1)


def segment_norm(values: Tensor, pointers: Tensor, order: Tensor | None, ord: float) -> Tensor:
    values = values.detach()
    wide = torch.float32 if values.dtype in HALVES else values.dtype
    source, kind = values, _kind(ord)
    if kind == 3:
        source, kind = values.to(wide).abs().pow_(ord), 1
    out, _ = over_segments(_NORM, pointers, order, (source,), (torch.float64, torch.int8), kind=kind)
    if ord not in (0, 1, math.inf, -math.inf):
        out = out.sqrt_() if ord == 2 else out.pow_(1 / ord)
    if ord < 0:  # an empty sum is 0, and 0 ** (1 / ord) inf; an empty minimum is inf
        out.masked_fill_((pointers.diff() == 0).view(-1, *(1,) * (out.ndim - 1)), 0)
    return out.to(wide)


def segment_norm_backward(
    grad: Tensor, values: Tensor, norm: Tensor, pointers: Tensor, order: Tensor | None, ord: float
) -> Tensor:
    """One pass that writes the result; for inf and -inf another that counts the ties."""
    values, norm, share = values.detach(), norm.detach(), grad.detach().double()
    out, kind = torch.empty_like(values, memory_format=torch.contiguous_format), _kind(ord)
    if ord == 0:
        return out.zero_()
    if kind in (2, 3):
        share = torch.where(norm == 0, 0, share * norm.double().pow(1 - ord))
    entries: tuple[Tensor, ...] = (values,)
    if kind == 3:
        entries = (values, (values.float() if values.dtype in HALVES else values).abs().pow_(ord - 1))
    over_segments(
        _TIES if kind > 3 else WRITES,
        pointers,
        order,
        entries,
        few=(share, norm),
        out=out,
        of=_slope,
        kind=kind,
    )
    return out


def _kind(ord: float) -> int:
    if math.isinf(ord):
        return 4 if ord > 0 else 5
    return int(ord) if ord in (0, 1, 2) else 3


@compiled
def _attains(v: tl.tensor, norm: tl.tensor) -> tl.tensor:
    return (tl.abs(v) == norm) | ((v != v) & (norm != norm))


@compiled
def _hit(x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    return _attains(x[0], x[1]).to(tl.int32)


@compiled
def _slope(x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """The entry, its sign, or its sign times its power, times a factor of its row; ties share."""
    v = x[0]
    if KIND == TWO:
        result = v * x[1]
    else:
        share = x[1]
        if KIND == POWER:
            share = x[2] * tl.where(v == 0, 0, x[1])
        if KIND >= LARGEST:
            share = x[1] / tl.maximum(x[3], 1.0)
        result = tl.where(v > 0, share, tl.where(v < 0, -share, share * 0))
        if KIND >= LARGEST:
            result = tl.where(_attains(v, x[2]), result, 0)
    return result


@compiled
def _start(ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr) -> tl.tensor:
    """A sum or an extreme absolute value, whether there is NaN, and whether there is any entry."""
    none = tl.zeros((ROWS, COLUMNS), tl.int32)
    return tl.full((ROWS, COLUMNS), float("inf") if KIND == SMALLEST else 0.0, ACC), none, none


@compiled
def _step(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr
) -> tl.tensor:
    acc, missing, some = state
    size = tl.where(there, tl.abs(x[0]), 0)
    if KIND == LARGEST:
        acc = tl.where(size > acc, size, acc)
    elif KIND == SMALLEST:
        acc = tl.where(there & (size < acc), size, acc)
    elif KIND == TWO:
        acc += size * size
    elif KIND == ONE:
        acc += size
    else:
        acc += (size != 0).to(acc.dtype)
    return acc, missing | (size != size).to(tl.int32), some | there.to(tl.int32)


@compiled
def _finish(state: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """Return sums before the root is taken."""
    acc, missing, some = state
    if KIND >= LARGEST:
        result = (tl.max(acc, axis=1) if KIND == LARGEST else tl.min(acc, axis=1)).to(tl.float64)
        result = tl.where(tl.max(missing, axis=1) > 0, float("nan"), result)
    else:
        result = tl.sum(acc.to(tl.float64), axis=1)
    return result, tl.max(some, axis=1)


@compiled
def _start_ties(
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr
) -> tl.tensor:
    return (tl.zeros((ROWS, COLUMNS), tl.int64),)


@compiled
def _step_ties(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr
) -> tl.tensor:
    return (state[0] + (there & _attains(x[0], x[2])).to(tl.int64),)


@compiled
def _finish_ties(state: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    return (tl.sum(state[0], axis=1),)


_NORM = Accumulator(_start, _step, _finish)
_TIES = Accumulator(_start_ties, _step_ties, _finish_ties)
