r"""Reductions and softmax over segments of stored entries: each segment is read where it lies.

.. math:: s_k = \sum_{i \in k} x_i, \qquad y_i = \frac{e^{x_i}}{\sum_{j \in k(i)} e^{x_j}}, \qquad
          \bar x_i = y_i \Bigl(\bar y_i - \sum_{j \in k(i)} y_j \bar y_j\Bigr)

Nothing is searched: the caller knows the segments (``pointers``, and ``order`` where the entries of one do not lie
together). A *lane* is one segment and one column of the entries (hybrid layouts have several), lanes of neighbouring
columns lie together, and a program walks its lanes' segments in steps of some entries. It stops after the longest, so a
segment that is far longer than all others costs time. Sums are added in float64 (integers in int64).

Sorting is PyTorch's.
"""

from __future__ import annotations

import math

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels import segments as family
from maskgrad.kernels.coalescing import REDUCTIONS
from maskgrad.kernels.cuda.compiler import compiled, index_type, launch, power_of_two, precision
from maskgrad.kernels.cuda.runs import name_outside
from maskgrad.kernels.kernel import HALVES

ENTRIES = 1024  # of a tile of lanes and steps
_SUM, _MEAN, _AMAX, _AMIN = range(len(REDUCTIONS))


def sort_rows(indices: Tensor, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """As in the reference; an index outside the table is an IndexError (the host waits for the result anyway)."""
    ascending, order = torch.sort(indices, stable=True)
    if len(indices):
        smallest, largest = torch.stack((ascending[0], ascending[-1])).tolist()
        if smallest < 0 or largest >= num_rows:
            name_outside(indices, num_rows)
    rows, counts = torch.unique_consecutive(ascending, return_counts=True)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), order, rows


def segment_sum(
    values: Tensor, pointers: Tensor, order: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:
    if dtype is None:
        dtype = torch.float32 if values.dtype in HALVES else values.dtype
    exact = values.dtype == dtype or (values.is_floating_point() and dtype in (torch.float32, torch.float64))
    if not exact:
        return family.segment_sum.reference(values, pointers, order, dtype)
    return merged(values, pointers, order, "sum", dtype)


def segment_extremum(values: Tensor, pointers: Tensor, order: Tensor | None, largest: bool) -> Tensor:
    return merged(values, pointers, order, "amax" if largest else "amin", values.dtype)


def merged(
    values: Tensor, pointers: Tensor, order: Tensor | None, reduce: str, dtype: torch.dtype | None
) -> Tensor:
    """The sum, mean, amax or amin of each segment, rounded once to ``dtype``."""
    values = values.detach().contiguous()
    out = values.new_empty((pointers.shape[0] - 1, *values.shape[1:]), dtype=dtype)
    extreme = reduce in ("amax", "amin")
    wide = tl.float64 if values.is_floating_point() else tl.int64
    walk_segments(
        _merge, values, pointers, order, len(values), (values, out), REDUCE=REDUCTIONS.index(reduce),
        ACC=precision(values.dtype) if extreme else wide, FLOAT=values.is_floating_point(),
    )  # fmt: skip
    return out


def segment_expand(values: Tensor, pointers: Tensor, order: Tensor | None, number: int) -> Tensor:
    values = values.detach().contiguous()
    out = values.new_empty((number, *values.shape[1:]))
    if out.numel():
        walk_segments(_spread, out, pointers, order, number, (values, out))
    return out


def segment_softmax(values: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool) -> Tensor:
    values = values.detach().contiguous()
    out = torch.empty_like(values)
    if out.numel():
        walk_segments(
            _softmax, values, pointers, order, len(values), (values, out), LOGARITHM=logarithm,
            ACC=precision(values.dtype),
        )  # fmt: skip
    return out


def segment_softmax_backward(
    grad: Tensor, output: Tensor, pointers: Tensor, order: Tensor | None, logarithm: bool
) -> Tensor:
    if grad.dtype != output.dtype:
        return family.segment_softmax_backward.reference(grad, output, pointers, order, logarithm)
    grad, output = grad.detach().contiguous(), output.detach().contiguous()
    out = torch.empty_like(output)
    if out.numel():
        walk_segments(
            _softmax_backward, output, pointers, order, len(output), (grad, output, out), LOGARITHM=logarithm,
            ACC=precision(output.dtype),
        )  # fmt: skip
    return out


def walk_segments(
    kernel: object, entries: Tensor, pointers: Tensor, order: Tensor | None, number: int,
    tensors: tuple[Tensor, ...], **constants: object,
) -> None:  # fmt: skip
    """Run ``kernel`` on tiles of lanes; ``entries`` (number, *dense) is one of ``tensors``."""
    segments, width = pointers.shape[0] - 1, math.prod(entries.shape[1:])
    mean_length = max(number // max(segments, 1), 1)
    step = power_of_two(mean_length, ENTRIES if width < 16 else 32)
    lanes = power_of_two(segments * width, ENTRIES // step)
    launch(
        kernel, -(-segments * width // lanes), *tensors, pointers.contiguous(),
        pointers if order is None else order.contiguous(), segments * width, width, ORDERED=order is not None,
        INDEX=index_type(*tensors), LANES=lanes, STEP=step, **constants,
    )  # fmt: skip


@compiled
def places_of(
    order: tl.tensor, entry: tl.tensor, stop: tl.tensor, width: tl.tensor, column: tl.tensor,
    ORDERED: tl.constexpr, INDEX: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Where the entries (lanes, step) lie; one that is past the end of its segment is somewhere, and not read."""
    at = entry
    if ORDERED:
        at = tl.load(order + entry, mask=entry < stop[:, None], other=0).to(INDEX)
    return at * width + column[:, None]


@compiled
def _merge(
    values: tl.tensor, out: tl.tensor, pointers: tl.tensor, order: tl.tensor, number: tl.tensor, width: tl.tensor,
    REDUCE: tl.constexpr, ACC: tl.constexpr, FLOAT: tl.constexpr, ORDERED: tl.constexpr, INDEX: tl.constexpr,
    LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    """The sum (0), mean (1), amax (2; NaN wins) or amin (3) of each segment."""
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    longest = tl.max(stop - start, axis=0)
    one = tl.zeros((LANES, 1), INDEX)
    first = tl.load(
        values + places_of(order, start[:, None] + one, stop, width, column, ORDERED, INDEX),
        mask=(lane < number)[:, None], other=0,
    ).to(ACC)  # fmt: skip
    acc = tl.zeros((LANES, STEP), ACC)
    missing = tl.zeros((LANES, STEP), tl.int32)
    if REDUCE >= 2:
        acc = acc + first
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        v = tl.load(values + place, mask=inside, other=0).to(ACC)
        if REDUCE < 2:
            acc += v
        else:
            v = tl.where(inside, v, first)
            missing += (v != v).to(tl.int32)
            if REDUCE == 2:
                acc = tl.where((v > acc) | (acc != acc), v, acc)
            else:
                acc = tl.where((v < acc) | (acc != acc), v, acc)
    if REDUCE < 2:
        result = tl.sum(acc, axis=1)
        if REDUCE == 1:
            result = result / (stop - start)
    else:
        # A segment of nothing but NaN leaves NaN behind; elsewhere none is left, and the reduction never sees one.
        if FLOAT:
            acc = tl.where(acc != acc, 0, acc)
        result = tl.max(acc, axis=1) if REDUCE == 2 else tl.min(acc, axis=1)
        if FLOAT:
            result = tl.where(tl.max(missing, axis=1) > 0, float("nan"), result)
    if out.dtype.element_ty == tl.float16 or out.dtype.element_ty == tl.bfloat16:
        result = result.to(tl.float32)
    tl.store(out + lane, result.to(out.dtype.element_ty), mask=lane < number)


@compiled
def _spread(
    values: tl.tensor, out: tl.tensor, pointers: tl.tensor, order: tl.tensor, number: tl.tensor, width: tl.tensor,
    ORDERED: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    value = tl.load(values + lane, mask=lane < number, other=0)
    every = tl.broadcast_to(value[:, None], (LANES, STEP))
    for done in range(0, tl.max(stop - start, axis=0), STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        tl.store(out + place, every, mask=entry < stop[:, None])


@compiled
def _softmax(
    values: tl.tensor, out: tl.tensor, pointers: tl.tensor, order: tl.tensor, number: tl.tensor, width: tl.tensor,
    LOGARITHM: tl.constexpr, ACC: tl.constexpr, ORDERED: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr,
    STEP: tl.constexpr,
) -> None:  # fmt: skip
    """Three walks over a segment: the largest entry, the sum of the powers, the results. A NaN spoils its sum."""
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    longest = tl.max(stop - start, axis=0)
    best = tl.full((LANES, STEP), float("-inf"), ACC)
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        v = tl.load(values + place, mask=entry < stop[:, None], other=float("-inf")).to(ACC)
        best = tl.where(v > best, v, best)
    largest = tl.max(best, axis=1)[:, None]
    total = tl.zeros((LANES, STEP), tl.float64)
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        v = tl.load(values + place, mask=inside, other=0).to(ACC)
        total += tl.where(inside, tl.exp(v - largest).to(tl.float64), 0)
    share = tl.sum(total, axis=1).to(ACC)[:, None]
    if LOGARITHM:
        share = tl.log(share)
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        shifted = tl.load(values + place, mask=inside, other=0).to(ACC) - largest
        result = shifted - share if LOGARITHM else tl.exp(shifted) / share
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@compiled
def _softmax_backward(
    grad: tl.tensor, soft: tl.tensor, out: tl.tensor, pointers: tl.tensor, order: tl.tensor, number: tl.tensor,
    width: tl.tensor, LOGARITHM: tl.constexpr, ACC: tl.constexpr, ORDERED: tl.constexpr, INDEX: tl.constexpr,
    LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    column = lane % width
    start = tl.load(pointers + lane // width, mask=lane < number, other=0).to(INDEX)
    stop = tl.load(pointers + lane // width + 1, mask=lane < number, other=0).to(INDEX)
    longest = tl.max(stop - start, axis=0)
    total = tl.zeros((LANES, STEP), tl.float64)
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        g = tl.load(grad + place, mask=inside, other=0).to(tl.float64)
        if not LOGARITHM:
            g = g * tl.load(soft + place, mask=inside, other=0).to(tl.float64)
        total += g
    added = tl.sum(total, axis=1).to(ACC)[:, None]
    for done in range(0, longest, STEP):
        entry = start[:, None] + done + tl.arange(0, STEP)[None, :]
        inside = entry < stop[:, None]
        place = places_of(order, entry, stop, width, column, ORDERED, INDEX)
        g = tl.load(grad + place, mask=inside, other=0).to(ACC)
        y = tl.load(soft + place, mask=inside, other=0).to(ACC)
        result = g - tl.exp(y) * added if LOGARITHM else y * (g - added)
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)
