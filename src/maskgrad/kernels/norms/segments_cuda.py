r"""Vector norm of each segment of a list of entries: each segment is read where it lies.

.. math:: \lVert x \rVert_{p, k} = \Bigl(\sum_{i \in k} |x_i|^p\Bigr)^{1/p}, \qquad
          \frac{\partial \lVert x \rVert_{p, k}}{\partial x_i}
          = \operatorname{sgn} x_i \, |x_i|^{p - 1} \, \lVert x \rVert_{p, k}^{1 - p}

Sums are added in float64. The powers of orders other than 0, 1, 2, inf and -inf are PyTorch's own. Among
sizes NaN wins. Lanes are as in ``segments.py``.
"""

from __future__ import annotations

import math

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.norms import segments as family
from maskgrad.kernels.segments.cuda import places_of, walk_segments

ZERO, ONE, TWO, POWER, LARGEST, SMALLEST = (tl.constexpr(kind) for kind in range(6))


def segment_norm(values: Tensor, pointers: Tensor, order: Tensor | None, ord: float) -> Tensor:
    if not values.numel():
        return family.segment_norm.reference(values, pointers, order, ord)
    values = values.detach().contiguous()
    wide = torch.float32 if values.dtype in HALVES else values.dtype
    source, kind = values, _kind(ord)
    if kind == 3:
        source, kind = values.to(wide).abs().pow_(ord), 1
    out = values.new_empty((len(pointers) - 1, *values.shape[1:]), dtype=torch.float64)
    walk_segments(_norms, source, pointers, order, len(values), (source, out), KIND=kind)
    if ord not in (0, 1, math.inf, -math.inf):
        out = out.sqrt_() if ord == 2 else out.pow_(1 / ord)
    if ord < 0:  # the sum of nothing is 0, and 0 ** (1 / ord) inf; the smallest of nothing is inf
        out.masked_fill_((pointers.diff() == 0).view(-1, *(1,) * (out.ndim - 1)), 0)
    return out.to(wide)


def segment_norm_backward(
    grad: Tensor, values: Tensor, norm: Tensor, pointers: Tensor, order: Tensor | None, ord: float
) -> Tensor:
    """As in the reference: one pass that writes the result; for inf and -inf another that counts who attains it."""
    values, norm, share = values.detach().contiguous(), norm.detach().contiguous(), grad.detach().double()
    out, kind = torch.empty_like(values), _kind(ord)
    if ord == 0 or not values.numel():
        return out.zero_()
    powers = values
    if kind in (2, 3):
        share = torch.where(norm == 0, 0, share * norm.double().pow(1 - ord))
    if kind == 3:
        powers = (values.float() if values.dtype in HALVES else values).abs().pow_(ord - 1)
    walk_segments(
        _backward, values, pointers, order, len(values), (values, powers, share.contiguous(), norm, out), KIND=kind
    )  # fmt: skip
    return out


def _kind(ord: float) -> int:
    if math.isinf(ord):
        return 4 if ord > 0 else 5
    return int(ord) if ord in (0, 1, 2) else 3


@compiled
def _norms(
    values: tl.tensor, out: tl.tensor, pointers: tl.tensor, order: tl.tensor, number: tl.tensor, width: tl.tensor,
    KIND: tl.constexpr, ORDERED: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr,
    STEP: tl.constexpr,
) -> None:  # fmt: skip
    """Sums (not yet a root), or an extreme size."""
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    acc = tl.zeros((LANES, STEP), tl.float64)
    missing = tl.zeros((LANES, STEP), tl.int32)
    if KIND == SMALLEST:
        acc = acc + float("inf")
    for done in range(0, tl.max(stop - start, axis=0), STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        size = tl.abs(tl.load(values + place, mask=inside, other=0).to(tl.float64))
        if KIND == LARGEST:
            acc = tl.where(size > acc, size, acc)
        elif KIND == SMALLEST:
            acc = tl.where(inside & (size < acc), size, acc)
        elif KIND == TWO:
            acc += size * size
        elif KIND == ONE:
            acc += size
        else:
            acc += (size != 0).to(tl.float64)
        missing = missing | (size != size).to(tl.int32)
    if KIND >= LARGEST:
        result = tl.max(acc, axis=1) if KIND == LARGEST else tl.min(acc, axis=1)
        result = tl.where(tl.max(missing, axis=1) > 0, float("nan"), result)
    else:
        result = tl.sum(acc, axis=1)
    tl.store(out + lane, result, mask=lane < number)


@compiled
def _backward(
    values: tl.tensor, powers: tl.tensor, share: tl.tensor, norm: tl.tensor, out: tl.tensor, pointers: tl.tensor,
    order: tl.tensor, number: tl.tensor, width: tl.tensor, KIND: tl.constexpr, ORDERED: tl.constexpr,
    INDEX: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    """The entry, its sign, or its sign times its power, times what its segment has; ties share."""
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    longest = tl.max(stop - start, axis=0)
    factor = tl.load(share + lane, mask=lane < number, other=0)
    best = tl.load(norm + lane, mask=lane < number, other=0)[:, None]
    if KIND >= LARGEST:
        ties = tl.zeros((LANES, STEP), tl.int64)
        for done in range(0, longest, STEP):
            entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
            inside = entry < stop[:, None]
            place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
            size = tl.abs(tl.load(values + place, mask=inside, other=0)).to(best.dtype)
            hit = (size == best) | ((size != size) & (best != best))
            ties += tl.where(inside & hit, 1, 0)
        factor = factor / tl.maximum(tl.sum(ties, axis=1), 1).to(tl.float64)
    each = tl.broadcast_to(factor[:, None], (LANES, STEP))
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        v = tl.load(values + place, mask=inside, other=0)
        result = each
        if KIND == TWO:
            result = v.to(tl.float64) * each
        else:
            if KIND == POWER:
                power = tl.load(powers + place, mask=inside, other=0).to(tl.float64)
                result = each * tl.where(v == 0, 0, power)
            result = tl.where(v > 0, result, tl.where(v < 0, -result, result * 0))
            if KIND >= LARGEST:
                size = tl.abs(v).to(best.dtype)
                result = tl.where((size == best) | ((size != size) & (best != best)), result, 0)
        if out.dtype.element_ty == tl.float16 or out.dtype.element_ty == tl.bfloat16:
            result = result.to(tl.float32)
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)
