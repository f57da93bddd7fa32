r"""One optimizer step on the rows that have a gradient: merge duplicates and update, in one pass.

The formulas are those of :mod:`maskgrad.kernels.updates`. Indices are sorted first, stably. There is a *lane*
for each entry and column; the lane of the first entry of a run of equal indices adds the run up (in ``runs.py``) and
updates its row, the others have nothing to do. So each row is read and written once, merged gradients never reach
memory, and the host need not know how many rows there are: it does not wait.

An index outside the table is refused as PyTorch refuses it on a GPU, by an error of the device that the host meets
later; nothing is written for it. Rows with gaps are left to the reference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels import updates as family
from maskgrad.kernels.cuda.compiler import compiled, index_type, launch, power_of_two, precision
from maskgrad.kernels.cuda.runs import is_first, number_of, refuse_outside, run_sum

LANES = 128
STEP = 8  # entries of a run added at a time; most runs are shorter


def sgd_rows_(
    param: Tensor, momentum_buffer: Tensor | None, indices: Tensor, values: Tensor, *, first_step: Tensor | None = None,
    **numbers: Any,
) -> None:  # fmt: skip
    buffered = momentum_buffer is not None and numbers.get("momentum", 0) != 0
    buffer = momentum_buffer if momentum_buffer is not None and buffered else param
    fresh = first_step if first_step is not None and buffered else None
    if not _fusable(param, buffer) or (fresh is not None and not fresh.is_contiguous()):
        family.sgd_rows_.reference(param, momentum_buffer, indices, values, first_step=first_step, **numbers)
        return
    marks = indices if fresh is None else fresh.view(torch.int8)
    _start(
        _sgd, param, (buffer, marks), indices, values, family.scalars("sgd_rows_", numbers), BUFFERED=buffered,
        NESTEROV=bool(numbers.get("nesterov")), MARKED=fresh is not None,
    )  # fmt: skip
    if fresh is not None:  # only now: programs that share a row all ask for its mark
        fresh.index_fill_(0, indices, False)


def adagrad_rows_(param: Tensor, state_sum: Tensor, indices: Tensor, values: Tensor, **numbers: Any) -> None:
    if not _fusable(param, state_sum):
        family.adagrad_rows_.reference(param, state_sum, indices, values, **numbers)
        return
    _start(_adagrad, param, (state_sum,), indices, values, family.scalars("adagrad_rows_", numbers))


def rowwise_adagrad_rows_(
    param: Tensor, state_sum: Tensor, indices: Tensor, values: Tensor, **numbers: Any
) -> None:
    """As in the reference; one program is one row, and merges it twice if it is wider than a program."""
    if not _fusable(param, state_sum):
        family.rowwise_adagrad_rows_.reference(param, state_sum, indices, values, **numbers)
        return
    scalars = family.scalars("rowwise_adagrad_rows_", numbers)
    _start(_rowwise_adagrad, param, (state_sum,), indices, values, scalars, whole_rows=True)


def adam_rows_(
    param: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, max_exp_avg_sq: Tensor | None, indices: Tensor, values: Tensor,
    **numbers: Any,
) -> None:  # fmt: skip
    if not _fusable(param, exp_avg, exp_avg_sq, max_exp_avg_sq):
        family.adam_rows_.reference(param, exp_avg, exp_avg_sq, max_exp_avg_sq, indices, values, **numbers)
        return
    factor, decay, rate, *betas, root, eps, shrink = family.scalars("adam_rows_", numbers)
    largest = exp_avg_sq if max_exp_avg_sq is None else max_exp_avg_sq
    _start(
        _adam, param, (exp_avg, exp_avg_sq, largest), indices, values,
        (factor, decay, shrink, *betas, 1 / root, eps, rate), AMSGRAD=max_exp_avg_sq is not None,
    )  # fmt: skip


def rmsprop_rows_(
    param: Tensor, square_avg: Tensor, grad_avg: Tensor | None, momentum_buffer: Tensor | None, indices: Tensor,
    values: Tensor, **numbers: Any,
) -> None:  # fmt: skip
    buffer = momentum_buffer if numbers.get("momentum", 0) != 0 else None
    if not _fusable(param, square_avg, grad_avg, buffer):
        family.rmsprop_rows_.reference(
            param, square_avg, grad_avg, momentum_buffer, indices, values, **numbers
        )
        return
    states = (square_avg, *(square_avg if x is None else x for x in (grad_avg, buffer)))
    _start(
        _rmsprop, param, states, indices, values, family.scalars("rmsprop_rows_", numbers),
        CENTERED=grad_avg is not None, BUFFERED=buffer is not None,
    )  # fmt: skip


def _fusable(param: Tensor, *states: Tensor | None) -> bool:
    return param.is_contiguous() and all(
        s is None or (s.is_contiguous() and s.is_floating_point()) for s in states
    )


def _start(
    kernel: object, param: Tensor, states: tuple[Tensor, ...], indices: Tensor, values: Tensor,
    scalars: Sequence[float], whole_rows: bool = False, **constants: object,
) -> None:  # fmt: skip
    refuse_outside(indices, param.shape[0])
    width = math.prod(param.shape[1:])
    number = indices.shape[0] * width
    if not number:
        return
    ascending, order = torch.sort(indices, stable=True)
    lanes = power_of_two(width, 512) if whole_rows else LANES
    launch(
        kernel, indices.shape[0] if whole_rows else -(-number // lanes), param.detach(), *states,
        values.detach().contiguous(), ascending, order, indices.shape[0], width, param.shape[0],
        *map(float, scalars), ACC=precision(param.dtype), INDEX=index_type(param, values), LANES=lanes, STEP=STEP,
        **constants,
    )  # fmt: skip


@compiled
def _sgd(
    param: tl.tensor, buffer: tl.tensor, fresh: tl.tensor, values: tl.tensor, ascending: tl.tensor, order: tl.tensor,
    number: tl.tensor, width: tl.tensor, rows: tl.tensor, factor: tl.float64, decay: tl.float64, lr: tl.float64,
    momentum: tl.float64, undamped: tl.float64, BUFFERED: tl.constexpr, NESTEROV: tl.constexpr,
    MARKED: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    entry = lane // width
    column = lane % width
    first = is_first(ascending, entry, number, rows)
    added = run_sum(values, ascending, order, entry, column, first, number, width, INDEX, LANES, STEP)
    row = tl.load(ascending + entry, mask=first, other=0).to(INDEX)
    place = row * width + column
    p = tl.load(param + place, mask=first, other=0).to(ACC)
    g = added.to(ACC) * number_of(factor, ACC) + p * number_of(decay, ACC)
    if BUFFERED:
        b = tl.load(buffer + place, mask=first, other=0).to(ACC)
        b = number_of(momentum, ACC) * b + number_of(undamped, ACC) * g
        if MARKED:
            b = tl.where(tl.load(fresh + row, mask=first, other=0) != 0, g, b)
        tl.store(buffer + place, b.to(buffer.dtype.element_ty), mask=first)
        g = g + number_of(momentum, ACC) * b if NESTEROV else b
    tl.store(param + place, (p - number_of(lr, ACC) * g).to(param.dtype.element_ty), mask=first)


@compiled
def _adagrad(
    param: tl.tensor, state: tl.tensor, values: tl.tensor, ascending: tl.tensor, order: tl.tensor, number: tl.tensor,
    width: tl.tensor, rows: tl.tensor, factor: tl.float64, decay: tl.float64, lr: tl.float64, eps: tl.float64,
    ACC: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    entry = lane // width
    column = lane % width
    first = is_first(ascending, entry, number, rows)
    added = run_sum(values, ascending, order, entry, column, first, number, width, INDEX, LANES, STEP)
    place = tl.load(ascending + entry, mask=first, other=0).to(INDEX) * width + column
    p = tl.load(param + place, mask=first, other=0).to(ACC)
    g = added.to(ACC) * number_of(factor, ACC) + p * number_of(decay, ACC)
    s = tl.load(state + place, mask=first, other=0).to(ACC) + g * g
    p = p - number_of(lr, ACC) * g / (tl.sqrt(s) + number_of(eps, ACC))
    tl.store(state + place, s.to(state.dtype.element_ty), mask=first)
    tl.store(param + place, p.to(param.dtype.element_ty), mask=first)


@compiled
def _rowwise_adagrad(
    param: tl.tensor, state: tl.tensor, values: tl.tensor, ascending: tl.tensor, order: tl.tensor, number: tl.tensor,
    width: tl.tensor, rows: tl.tensor, factor: tl.float64, decay: tl.float64, lr: tl.float64, eps: tl.float64,
    ACC: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    entry = tl.program_id(0).to(INDEX) + tl.zeros((LANES,), INDEX)
    begins = is_first(ascending, entry, number, rows)
    row = tl.load(ascending + entry, mask=begins, other=0).to(INDEX)
    stop = tl.max(begins.to(tl.int32), axis=0) * width  # nothing to do for an entry that only joins a run
    squares = tl.zeros((LANES,), tl.float64)
    for done in range(0, stop, LANES):
        column = done + tl.arange(0, LANES)
        first = begins & (column < width)
        added = run_sum(values, ascending, order, entry, column, first, number, width, INDEX, LANES, STEP)
        p = tl.load(param + row * width + column, mask=first, other=0).to(ACC)
        g = added.to(ACC) * number_of(factor, ACC) + p * number_of(decay, ACC)
        squares += tl.where(first, (g * g).to(tl.float64), 0)
    s = tl.load(state + row, mask=begins, other=0).to(ACC) + (tl.sum(squares, axis=0) / width).to(ACC)
    for done in range(0, stop, LANES):
        column = done + tl.arange(0, LANES)
        first = begins & (column < width)
        added = run_sum(values, ascending, order, entry, column, first, number, width, INDEX, LANES, STEP)
        p = tl.load(param + row * width + column, mask=first, other=0).to(ACC)
        g = added.to(ACC) * number_of(factor, ACC) + p * number_of(decay, ACC)
        p = p - number_of(lr, ACC) * g / (tl.sqrt(s) + number_of(eps, ACC))
        tl.store(param + row * width + column, p.to(param.dtype.element_ty), mask=first)
    tl.store(state + row, s.to(state.dtype.element_ty), mask=begins & (tl.arange(0, LANES) == 0))


@compiled
def _adam(
    param: tl.tensor, averages: tl.tensor, squares: tl.tensor, largest: tl.tensor, values: tl.tensor,
    ascending: tl.tensor, order: tl.tensor, number: tl.tensor, width: tl.tensor, rows: tl.tensor, factor: tl.float64,
    decay: tl.float64, shrink: tl.float64, new1: tl.float64, beta2: tl.float64, new2: tl.float64,
    correction: tl.float64, eps: tl.float64, rate: tl.float64, AMSGRAD: tl.constexpr, ACC: tl.constexpr,
    INDEX: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    entry = lane // width
    column = lane % width
    first = is_first(ascending, entry, number, rows)
    added = run_sum(values, ascending, order, entry, column, first, number, width, INDEX, LANES, STEP)
    place = tl.load(ascending + entry, mask=first, other=0).to(INDEX) * width + column
    p = tl.load(param + place, mask=first, other=0).to(ACC)
    g = added.to(ACC) * number_of(factor, ACC) + p * number_of(decay, ACC)
    p = p * number_of(shrink, ACC)
    m = tl.load(averages + place, mask=first, other=0).to(ACC)
    m = m + number_of(new1, ACC) * (g - m)
    v = (
        tl.load(squares + place, mask=first, other=0).to(ACC) * number_of(beta2, ACC)
        + number_of(new2, ACC) * g * g
    )
    tl.store(averages + place, m.to(averages.dtype.element_ty), mask=first)
    tl.store(squares + place, v.to(squares.dtype.element_ty), mask=first)
    if AMSGRAD:
        best = tl.load(largest + place, mask=first, other=0).to(ACC)
        v = tl.where((v > best) | (v != v), v, best)
        tl.store(largest + place, v.to(largest.dtype.element_ty), mask=first)
    root = tl.sqrt(v) * number_of(correction, ACC) + number_of(eps, ACC)
    tl.store(param + place, (p - number_of(rate, ACC) * m / root).to(param.dtype.element_ty), mask=first)


@compiled
def _rmsprop(
    param: tl.tensor, squares: tl.tensor, averages: tl.tensor, buffer: tl.tensor, values: tl.tensor,
    ascending: tl.tensor, order: tl.tensor, number: tl.tensor, width: tl.tensor, rows: tl.tensor, factor: tl.float64,
    decay: tl.float64, lr: tl.float64, alpha: tl.float64, new: tl.float64, eps: tl.float64, momentum: tl.float64,
    CENTERED: tl.constexpr, BUFFERED: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr,
    STEP: tl.constexpr,
) -> None:  # fmt: skip
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    entry = lane // width
    column = lane % width
    first = is_first(ascending, entry, number, rows)
    added = run_sum(values, ascending, order, entry, column, first, number, width, INDEX, LANES, STEP)
    place = tl.load(ascending + entry, mask=first, other=0).to(INDEX) * width + column
    p = tl.load(param + place, mask=first, other=0).to(ACC)
    g = added.to(ACC) * number_of(factor, ACC) + p * number_of(decay, ACC)
    v = (
        tl.load(squares + place, mask=first, other=0).to(ACC) * number_of(alpha, ACC)
        + number_of(new, ACC) * g * g
    )
    tl.store(squares + place, v.to(squares.dtype.element_ty), mask=first)
    if CENTERED:
        mean = tl.load(averages + place, mask=first, other=0).to(ACC)
        mean = mean + number_of(new, ACC) * (g - mean)
        tl.store(averages + place, mean.to(averages.dtype.element_ty), mask=first)
        v = v - mean * mean
    change = g / (tl.sqrt(v) + number_of(eps, ACC))
    if BUFFERED:
        change = tl.load(buffer + place, mask=first, other=0).to(ACC) * number_of(momentum, ACC) + change
        tl.store(buffer + place, change.to(buffer.dtype.element_ty), mask=first)
    tl.store(param + place, (p - number_of(lr, ACC) * change).to(param.dtype.element_ty), mask=first)
