r"""Logarithm of the sum of exponentials of each segment of a list of entries: each segment is read where it lies.

.. math:: \ell_k = M_k + \log \sum_{i \in k} e^{x_i - M_k}, \qquad
          \frac{\partial \ell_k}{\partial x_i} = e^{x_i - \ell_k}

with :math:`M_k` the largest entry. Exponentials are added in float64. Lanes are as in ``segments.py``.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels.cuda.compiler import compiled, precision
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.segments.cuda import places_of, walk_segments
from maskgrad.kernels.softmax import segments as family


def segment_logsumexp(values: Tensor, pointers: Tensor, order: Tensor | None) -> Tensor:
    if not values.numel():
        return family.segment_logsumexp.reference(values, pointers, order)
    values = values.detach().contiguous()
    dtype = torch.float32 if values.dtype in HALVES else values.dtype
    out = values.new_empty((len(pointers) - 1, *values.shape[1:]), dtype=dtype)
    walk_segments(
        _logsumexp, values, pointers, order, len(values), (values, out), ACC=precision(values.dtype)
    )
    return out


def segment_logsumexp_backward(
    grad: Tensor, values: Tensor, result: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    """As in the reference: one pass that writes the result."""
    values = values.detach().contiguous()
    out = torch.empty_like(values)
    if out.numel():
        walk_segments(
            _backward, values, pointers, order, len(values),
            (values, grad.detach().contiguous(), result.detach().contiguous(), out), ACC=precision(values.dtype),
        )  # fmt: skip
    return out


@compiled
def _logsumexp(
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
def _backward(
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
