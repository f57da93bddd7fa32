r"""Product of each segment of a list of entries, and its gradient: each segment is read where it lies.

.. math:: P_k = \prod_{i \in k} x_i, \qquad \frac{\partial P_k}{\partial x_i} = \prod_{j \in k, j \ne i} x_j

Factors are multiplied in float64 (integers in int64), zeros apart. ``dull`` is the sum of 0 * x: NaN if a factor is inf
or NaN, else 0, which is the product as soon as one factor is zero. Lanes are as in ``segments.py``.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.prod import segments as family
from maskgrad.kernels.segments.cuda import places_of, walk_segments


def segment_prod(values: Tensor, pointers: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    values = values.detach().contiguous()
    if not values.numel():
        return family.segment_prod.reference(values, pointers, order)
    exact = values.is_floating_point()
    dtype = torch.promote_types(values.dtype, torch.float32) if exact else torch.int64
    source = values.view(torch.uint8) if values.dtype == torch.bool else values
    shape, wide = (len(pointers) - 1, *values.shape[1:]), torch.float64 if exact else torch.int64
    rest, dull, zeros = (values.new_empty(shape, dtype=d) for d in (wide, wide, torch.int64))
    walk_segments(
        _products, source, pointers, order, len(values), (source, rest, dull, zeros),
        ACC=tl.float64 if exact else tl.int64,
    )  # fmt: skip
    product = torch.where(zeros > 0, dull, rest).to(dtype)
    return product, rest.float() if values.dtype in HALVES else rest, zeros


def segment_prod_backward(
    grad: Tensor, values: Tensor, rest: Tensor, zeros: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    """As in the reference: one pass that writes the result."""
    values = values.detach().contiguous()
    out = torch.empty_like(values)
    if out.numel():
        share = (rest.detach().double() * grad.detach()).contiguous()
        walk_segments(
            _backward, values, pointers, order, len(values), (values, share, zeros.contiguous(), out)
        )
    return out


@compiled
def _times(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a * b


@compiled
def _products(
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
def _backward(
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
