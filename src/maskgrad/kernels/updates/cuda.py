r"""One optimizer step on the rows that have a gradient: merge duplicates and update, in one pass.

The formulas are those of :mod:`maskgrad.kernels.updates`. Indices are sorted first, stably. There is a *lane*
for each entry and column; the lane of the first entry of a run of equal indices sums the run (in ``runs.py``) and
updates its row, the others do nothing. So each row is read and written once, merged gradients never reach
memory, and the host does not wait for the number of rows.

As in PyTorch on a GPU, an index outside the table raises an asynchronous device error; nothing is written for it.
Rows with gaps are left to the reference.
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
from maskgrad.kernels.cuda.loops import number_of
from maskgrad.kernels.cuda.runs import is_first, refuse_outside, run_sum

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
    kind = buffered + 2 * bool(numbers.get("nesterov")) + 4 * (fresh is not None)
    scalars = family.scalars("sgd_rows_", numbers)
    _start(_rows, param, (buffer,) if buffered else (), indices, values, scalars, kind, OF=_sgd, marks=marks)
    if fresh is not None:  # only now: programs that share a row all read its mark
        fresh.index_fill_(0, indices, False)


def adagrad_rows_(param: Tensor, state_sum: Tensor, indices: Tensor, values: Tensor, **numbers: Any) -> None:
    if not _fusable(param, state_sum):
        family.adagrad_rows_.reference(param, state_sum, indices, values, **numbers)
        return
    scalars = family.scalars("adagrad_rows_", numbers)
    _start(_rows, param, (state_sum,), indices, values, scalars, OF=_adagrad)


def rowwise_adagrad_rows_(
    param: Tensor, state_sum: Tensor, indices: Tensor, values: Tensor, **numbers: Any
) -> None:
    """As in the reference; one program handles one row, and merges it twice if it is wider than a program."""
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
    states = (exp_avg, exp_avg_sq) if max_exp_avg_sq is None else (exp_avg, exp_avg_sq, max_exp_avg_sq)
    scalars = (factor, decay, shrink, *betas, 1 / root, eps, rate)
    _start(_rows, param, states, indices, values, scalars, len(states), OF=_adam)


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
    states = (square_avg, *(x for x in (grad_avg, buffer) if x is not None))
    kind = (grad_avg is not None) + 2 * (buffer is not None)
    _start(_rows, param, states, indices, values, family.scalars("rmsprop_rows_", numbers), kind, OF=_rmsprop)


def _fusable(param: Tensor, *states: Tensor | None) -> bool:
    return param.is_contiguous() and all(
        s is None or (s.is_contiguous() and s.is_floating_point()) for s in states
    )


def _start(
    kernel: object, param: Tensor, states: tuple[Tensor, ...], indices: Tensor, values: Tensor,
    scalars: Sequence[float], kind: int = 0, whole_rows: bool = False, marks: Tensor | None = None,
    **constants: object,
) -> None:  # fmt: skip
    refuse_outside(indices, param.shape[0])
    width = math.prod(param.shape[1:])
    number = indices.shape[0] * width
    if not number:
        return
    ascending, order = torch.sort(indices, stable=True)
    lanes = power_of_two(width, 512) if whole_rows else LANES
    numbers = tuple(float(x) for x in (*scalars, *(0,) * 9)[:9])
    launch(
        kernel, indices.shape[0] if whole_rows else -(-number // lanes), param.detach(), states,
        indices if marks is None else marks, values.detach().contiguous(), ascending, order, indices.shape[0], width,
        param.shape[0], *numbers, KIND=kind, ACC=precision(param.dtype), INDEX=index_type(param, values), LANES=lanes,
        STEP=STEP, **constants,
    )  # fmt: skip


@compiled
def _rows(
    param: tl.tensor, states: tl.tensor, marks: tl.tensor, values: tl.tensor, ascending: tl.tensor, order: tl.tensor,
    number: tl.tensor, width: tl.tensor, rows: tl.tensor, factor: tl.float64, decay: tl.float64, a: tl.float64,
    b: tl.float64, c: tl.float64, d: tl.float64, e: tl.float64, f: tl.float64, g: tl.float64, OF: tl.constexpr,
    KIND: tl.constexpr, ACC: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    """Apply the rule ``OF``, which returns new parameter and states from the old ones and the gradient."""
    lane = tl.program_id(0).to(INDEX) * LANES + tl.arange(0, LANES)
    entry = lane // width
    column = lane % width
    first = is_first(ascending, entry, number, rows)
    added = run_sum(values, ascending, order, entry, column, first, number, width, INDEX, LANES, STEP)
    row = tl.load(ascending + entry, mask=first, other=0).to(INDEX)
    place = row * width + column
    p = tl.load(param + place, mask=first, other=0).to(ACC)
    gradient = added.to(ACC) * number_of(factor, ACC) + p * number_of(decay, ACC)
    n = (
        number_of(a, ACC), number_of(b, ACC), number_of(c, ACC), number_of(d, ACC), number_of(e, ACC),
        number_of(f, ACC), number_of(g, ACC),
    )  # fmt: skip
    old = ()
    for i in tl.static_range(len(states)):
        old = old + (tl.load(states[i] + place, mask=first, other=0).to(ACC),)
    if KIND & 4:
        old = old + (tl.load(marks + row, mask=first, other=0) != 0,)
    new = OF(p, gradient, old, n, KIND)
    for i in tl.static_range(len(states)):
        tl.store(states[i] + place, new[1 + i].to(states[i].dtype.element_ty), mask=first)
    tl.store(param + place, new[0].to(param.dtype.element_ty), mask=first)


@compiled
def _sgd(p: tl.tensor, g: tl.tensor, old: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """``n``: learning rate, momentum, 1 - dampening. Bits: momentum, Nesterov's, marked rows."""
    states = ()
    if KIND & 1:
        buffer = n[1] * old[0] + n[2] * g
        if KIND & 4:
            buffer = tl.where(old[1], g, buffer)
        g = g + n[1] * buffer if KIND & 2 else buffer
        states = (buffer,)
    return (p - n[0] * g,) + states


@compiled
def _adagrad(p: tl.tensor, g: tl.tensor, old: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """``n``: learning rate and epsilon."""
    s = old[0] + g * g
    return p - n[0] * g / (tl.sqrt(s) + n[1]), s


@compiled
def _adam(p: tl.tensor, g: tl.tensor, old: tl.tensor, n: tl.tensor, STATES: tl.constexpr) -> tl.tensor:
    """``n``: shrinkage, 1 - beta 1, beta 2, 1 - beta 2, correction, epsilon, rate. AMSGrad has three states."""
    m = old[0] + n[1] * (g - old[0])
    v = old[1] * n[2] + n[3] * g * g
    states = (m, v)
    if STATES == 3:
        v = tl.where((v > old[2]) | (v != v), v, old[2])
        states = states + (v,)
    return (p * n[0] - n[6] * m / (tl.sqrt(v) * n[4] + n[5]),) + states


@compiled
def _rmsprop(p: tl.tensor, g: tl.tensor, old: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """``n``: learning rate, alpha, 1 - alpha, epsilon, momentum. Bits: centered, momentum; states in this order."""
    v = old[0] * n[1] + n[2] * g * g
    states = (v,)
    if KIND & 1:
        mean = old[1] + n[2] * (g - old[1])
        states = states + (mean,)
        v = v - mean * mean
    change = g / (tl.sqrt(v) + n[3])
    if KIND & 2:
        change = old[len(old) - 1] * n[4] + change
        states = states + (change,)
    return (p - n[0] * change,) + states


@compiled
def _rowwise_adagrad(
    param: tl.tensor, states: tl.tensor, marks: tl.tensor, values: tl.tensor, ascending: tl.tensor, order: tl.tensor,
    number: tl.tensor, width: tl.tensor, rows: tl.tensor, factor: tl.float64, decay: tl.float64, a: tl.float64,
    b: tl.float64, c: tl.float64, d: tl.float64, e: tl.float64, f: tl.float64, g: tl.float64, KIND: tl.constexpr,
    ACC: tl.constexpr, INDEX: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
) -> None:  # fmt: skip
    state = states[0]
    entry = tl.program_id(0).to(INDEX) + tl.zeros((LANES,), INDEX)
    begins = is_first(ascending, entry, number, rows)
    row = tl.load(ascending + entry, mask=begins, other=0).to(INDEX)
    stop = tl.max(begins.to(tl.int32), axis=0) * width  # 0 for an entry that does not begin a run
    squares = tl.zeros((LANES,), tl.float64)
    for done in range(0, stop, LANES):
        column = done + tl.arange(0, LANES)
        first = begins & (column < width)
        added = run_sum(values, ascending, order, entry, column, first, number, width, INDEX, LANES, STEP)
        p = tl.load(param + row * width + column, mask=first, other=0).to(ACC)
        gradient = added.to(ACC) * number_of(factor, ACC) + p * number_of(decay, ACC)
        squares += tl.where(first, (gradient * gradient).to(tl.float64), 0)
    s = tl.load(state + row, mask=begins, other=0).to(ACC) + (tl.sum(squares, axis=0) / width).to(ACC)
    for done in range(0, stop, LANES):
        column = done + tl.arange(0, LANES)
        first = begins & (column < width)
        added = run_sum(values, ascending, order, entry, column, first, number, width, INDEX, LANES, STEP)
        p = tl.load(param + row * width + column, mask=first, other=0).to(ACC)
        gradient = added.to(ACC) * number_of(factor, ACC) + p * number_of(decay, ACC)
        p = p - number_of(a, ACC) * gradient / (tl.sqrt(s) + number_of(b, ACC))
        tl.store(param + row * width + column, p.to(param.dtype.element_ty), mask=first)
    tl.store(state + row, s.to(state.dtype.element_ty), mask=begins & (tl.arange(0, LANES) == 0))
