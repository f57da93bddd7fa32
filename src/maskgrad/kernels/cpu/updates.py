r"""One optimizer step on the rows that have a gradient: merge duplicates and update, in one pass.

The formulas are those of the reference. Indices are sorted first (see ``sorting.py``), so each touched row belongs to
one task and is read and written once; merged gradients never reach memory. The rows of a large table lie at places that
no processor foresees, so those ``AHEAD`` of the current one are asked for in advance: half the time for 262,144 rows of
a 10^6 x 64 table. An index outside the table is found before anything is written. Half parameters and rows with gaps
are left to the reference.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import array, compiled, prefetch
from maskgrad.kernels.cpu.sorting import fits, runs
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.reference import updates as reference

AHEAD = 8  # rows between asking for one and reading it
LINE = 64  # bytes that memory hands out at once


def sgd_rows_(
    param: Tensor, momentum_buffer: Tensor | None, indices: Tensor, values: Tensor, *, first_step: Tensor | None = None,
    **numbers: Any,
) -> None:  # fmt: skip
    """As in the reference."""
    buffer = momentum_buffer if numbers.get("momentum") else None
    if not _fusable(param, [buffer], values) or not (first_step is None or first_step.is_contiguous()):
        reference.sgd_rows_(param, momentum_buffer, indices, values, first_step=first_step, **numbers)
        return
    of = _Numbers(param, numbers)
    fresh = np.empty(0, np.uint8) if first_step is None or buffer is None else array(first_step)
    _run(
        _sgd, param, [buffer], indices, values, fresh, of("factor", 1), of("lr"), of("momentum"),
        of.scalar(1 - numbers.get("dampening", 0.0)), of("weight_decay"), buffer is not None,
        bool(numbers.get("nesterov")),
    )  # fmt: skip


def adagrad_rows_(param: Tensor, state_sum: Tensor, indices: Tensor, values: Tensor, **numbers: Any) -> None:
    """As in the reference."""
    if not _fusable(param, [state_sum], values):
        reference.adagrad_rows_(param, state_sum, indices, values, **numbers)
        return
    of = _Numbers(param, numbers)
    _run(
        _adagrad, param, [state_sum], indices, values, of("factor", 1), of("lr"), of("weight_decay"), of("eps")
    )  # fmt: skip


def rowwise_adagrad_rows_(
    param: Tensor, state_sum: Tensor, indices: Tensor, values: Tensor, **numbers: Any
) -> None:
    """As in the reference."""
    if not _fusable(param, [state_sum], values):
        reference.rowwise_adagrad_rows_(param, state_sum, indices, values, **numbers)
        return
    of = _Numbers(param, numbers)
    _run(
        _rowwise_adagrad, param, [state_sum], indices, values, of("factor", 1), of("lr"), of("weight_decay"), of("eps")
    )  # fmt: skip


def adam_rows_(
    param: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, max_exp_avg_sq: Tensor | None, indices: Tensor, values: Tensor,
    *, step: float, lr: float, beta1: float, beta2: float, **numbers: Any,
) -> None:  # fmt: skip
    """As in the reference."""
    states = [exp_avg, exp_avg_sq, max_exp_avg_sq]
    if not _fusable(param, states, values):
        options = {"step": step, "lr": lr, "beta1": beta1, "beta2": beta2} | numbers
        reference.adam_rows_(param, exp_avg, exp_avg_sq, max_exp_avg_sq, indices, values, **options)
        return
    of = _Numbers(param, numbers)
    decay, decoupled = numbers.get("weight_decay", 0.0), numbers.get("decoupled", False)
    _run(
        _adam, param, states, indices, values, of("factor", 1), of.scalar(lr / (1 - beta1**step)),
        of.scalar(1 - beta1), of.scalar(beta2), of.scalar(1 - beta2), of.scalar(math.sqrt(1 - beta2**step)), of("eps"),
        of.scalar(0 if decoupled else decay), of.scalar(1 - lr * decay if decoupled else 1),
        max_exp_avg_sq is not None,
    )  # fmt: skip


def rmsprop_rows_(
    param: Tensor, square_avg: Tensor, grad_avg: Tensor | None, momentum_buffer: Tensor | None, indices: Tensor,
    values: Tensor, *, alpha: float, **numbers: Any,
) -> None:  # fmt: skip
    """As in the reference."""
    buffer = momentum_buffer if numbers.get("momentum") else None
    states = [square_avg, grad_avg, buffer]
    if not _fusable(param, states, values):
        reference.rmsprop_rows_(
            param, square_avg, grad_avg, momentum_buffer, indices, values, alpha=alpha, **numbers
        )
        return
    of = _Numbers(param, numbers)
    _run(
        _rmsprop, param, states, indices, values, of("factor", 1), of("lr"), of.scalar(alpha), of.scalar(1 - alpha),
        of("eps"), of("weight_decay"), of("momentum"), grad_avg is not None, buffer is not None,
    )  # fmt: skip


def _fusable(param: Tensor, states: list[Tensor | None], values: Tensor) -> bool:
    return (
        param.dtype in (torch.float32, torch.float64)
        and all(t is None or (t.dtype == param.dtype and t.is_contiguous()) for t in (param, *states))
        and values.numel() > 0
        and fits(values.shape[0], param.shape[0])
    )


class _Numbers:
    """Scalars in the type of the parameter: a float64 among them would widen every row."""

    def __init__(self, param: Tensor, numbers: dict[str, Any]) -> None:
        self.scalar: Any = np.float32 if param.dtype == torch.float32 else np.float64
        self.numbers = numbers

    def __call__(self, name: str, default: float = 0.0) -> Any:
        return self.scalar(self.numbers.get(name, default))


def _run(
    loop: Any, param: Tensor, states: list[Tensor | None], indices: Tensor, values: Tensor, *rest: Any
) -> None:
    """Sort, then let ``loop`` do the rows. Where there is no state, the parameter stands in: one compiled version."""
    found = runs(indices, param.shape[0])
    values = values.detach().to(param.dtype).contiguous()
    tables = [array((param if t is None else t).view(-1)) for t in (param, *states)]
    run(
        loop, *tables, array(found.rows), array(values.view(-1)), found.keys, found.places, found.starts,
        math.prod(param.shape[1:]), *rest, tasks=len(found.rows), elements=values.numel() * 3,
    )  # fmt: skip


@compiled
def _fetch(table: Any, at: Any, width: int) -> None:
    for j in range(0, width, LINE // table.itemsize):
        prefetch(table, at + j)
    prefetch(table, at + width - 1)  # rows need not start with a line


@compiled
def _fetch_gradient(v: Any, keys: Any, places: Any, start: int, stop: int, width: int) -> None:
    for i in range(start, min(stop, start + AHEAD)):
        _fetch(v, np.int64(keys[i] & places) * width, width)


@compiled
def _merge_run(
    v: Any, keys: Any, places: Any, start: int, stop: int, width: int, factor: Any, wide: Any, g: Any
) -> None:
    """Let g = factor * the sum of the run: rounded once, whatever its length."""
    at = np.int64(keys[start] & places) * width
    a = v[at : at + width]
    if stop - start == 1:
        for j in range(width):
            g[j] = factor * a[j]
    elif stop - start == 2:
        at = np.int64(keys[start + 1] & places) * width
        b = v[at : at + width]
        for j in range(width):
            g[j] = factor * (a[j] + b[j])
    else:
        for j in range(width):
            wide[j] = a[j]
        for i in range(start + 1, stop):
            at = np.int64(keys[i] & places) * width
            b = v[at : at + width]
            for j in range(width):
                wide[j] += b[j]
        for j in range(width):
            g[j] = factor * v.dtype.type(wide[j])


@compiled
def _sgd(
    param: Any, buffer: Any, rows: Any, v: Any, keys: Any, places: Any, starts: Any, width: int, fresh: Any,
    factor: Any, lr: Any, momentum: Any, undamped: Any, decay: Any, buffered: bool, nesterov: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    g, wide = np.full(width, lr), np.empty(width, np.float64)
    for k in range(lo, hi):
        if k + AHEAD < hi:
            following = rows[k + AHEAD] * width
            _fetch_gradient(v, keys, places, starts[k + AHEAD], starts[k + AHEAD + 1], width)
            _fetch(param, following, width)
            if buffered:
                _fetch(buffer, following, width)
        _merge_run(v, keys, places, starts[k], starts[k + 1], width, factor, wide, g)
        p = param[rows[k] * width : (rows[k] + 1) * width]
        if decay != 0:
            for j in range(width):
                g[j] += decay * p[j]
        if buffered:
            b = buffer[rows[k] * width : (rows[k] + 1) * width]
            if fresh.size and fresh[rows[k]] != 0:
                fresh[rows[k]] = 0
                for j in range(width):
                    b[j] = g[j]
            else:
                for j in range(width):
                    b[j] = momentum * b[j] + undamped * g[j]
            for j in range(width):
                g[j] = g[j] + momentum * b[j] if nesterov else b[j]
        for j in range(width):
            p[j] -= lr * g[j]


@compiled
def _adagrad(
    param: Any, state: Any, rows: Any, v: Any, keys: Any, places: Any, starts: Any, width: int, factor: Any, lr: Any,
    decay: Any, eps: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    g, wide = np.full(width, lr), np.empty(width, np.float64)
    for k in range(lo, hi):
        if k + AHEAD < hi:
            following = rows[k + AHEAD] * width
            _fetch_gradient(v, keys, places, starts[k + AHEAD], starts[k + AHEAD + 1], width)
            _fetch(param, following, width)
            _fetch(state, following, width)
        _merge_run(v, keys, places, starts[k], starts[k + 1], width, factor, wide, g)
        p = param[rows[k] * width : (rows[k] + 1) * width]
        s = state[rows[k] * width : (rows[k] + 1) * width]
        if decay != 0:
            for j in range(width):
                g[j] += decay * p[j]
        for j in range(width):
            s[j] += g[j] * g[j]
            p[j] -= lr * g[j] / (np.sqrt(s[j]) + eps)


@compiled
def _rowwise_adagrad(
    param: Any, state: Any, rows: Any, v: Any, keys: Any, places: Any, starts: Any, width: int, factor: Any, lr: Any,
    decay: Any, eps: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    g, wide = np.full(width, lr), np.empty(width, np.float64)
    for k in range(lo, hi):
        if k + AHEAD < hi:
            _fetch_gradient(v, keys, places, starts[k + AHEAD], starts[k + AHEAD + 1], width)
            _fetch(param, rows[k + AHEAD] * width, width)
            prefetch(state, rows[k + AHEAD])
        _merge_run(v, keys, places, starts[k], starts[k + 1], width, factor, wide, g)
        p = param[rows[k] * width : (rows[k] + 1) * width]
        squares = np.float64(0)
        for j in range(width):
            g[j] += decay * p[j] if decay != 0 else 0
            squares += np.float64(g[j]) * np.float64(g[j])
        state[rows[k]] += param.dtype.type(squares / width)
        scale = lr / (np.sqrt(state[rows[k]]) + eps)
        for j in range(width):
            p[j] -= scale * g[j]


@compiled
def _adam(
    param: Any, first: Any, second: Any, largest: Any, rows: Any, v: Any, keys: Any, places: Any, starts: Any,
    width: int, factor: Any, rate: Any, new1: Any, beta2: Any, new2: Any, root2: Any, eps: Any, decay: Any,
    shrink: Any, amsgrad: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    g, wide = np.full(width, rate), np.empty(width, np.float64)
    for k in range(lo, hi):
        if k + AHEAD < hi:
            following = rows[k + AHEAD] * width
            _fetch_gradient(v, keys, places, starts[k + AHEAD], starts[k + AHEAD + 1], width)
            _fetch(param, following, width)
            _fetch(first, following, width)
            _fetch(second, following, width)
            if amsgrad:
                _fetch(largest, following, width)
        _merge_run(v, keys, places, starts[k], starts[k + 1], width, factor, wide, g)
        p = param[rows[k] * width : (rows[k] + 1) * width]
        m = first[rows[k] * width : (rows[k] + 1) * width]
        s = second[rows[k] * width : (rows[k] + 1) * width]
        if decay != 0:
            for j in range(width):
                g[j] += decay * p[j]
        for j in range(width):
            m[j] += new1 * (g[j] - m[j])
            s[j] = beta2 * s[j] + new2 * g[j] * g[j]
            g[j] = s[j]
        if amsgrad:
            t = largest[rows[k] * width : (rows[k] + 1) * width]
            for j in range(width):
                t[j] = t[j] if t[j] > s[j] or t[j] != t[j] else s[j]
                g[j] = t[j]
        for j in range(width):
            p[j] = shrink * p[j] - rate * m[j] / (np.sqrt(g[j]) / root2 + eps)


@compiled
def _rmsprop(
    param: Any, square: Any, average: Any, buffer: Any, rows: Any, v: Any, keys: Any, places: Any, starts: Any,
    width: int, factor: Any, lr: Any, alpha: Any, new: Any, eps: Any, decay: Any, momentum: Any, centered: bool,
    buffered: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    g, wide, spread = np.full(width, lr), np.empty(width, np.float64), np.full(width, lr)
    for k in range(lo, hi):
        if k + AHEAD < hi:
            following = rows[k + AHEAD] * width
            _fetch_gradient(v, keys, places, starts[k + AHEAD], starts[k + AHEAD + 1], width)
            _fetch(param, following, width)
            _fetch(square, following, width)
            if centered:
                _fetch(average, following, width)
            if buffered:
                _fetch(buffer, following, width)
        _merge_run(v, keys, places, starts[k], starts[k + 1], width, factor, wide, g)
        p = param[rows[k] * width : (rows[k] + 1) * width]
        s = square[rows[k] * width : (rows[k] + 1) * width]
        if decay != 0:
            for j in range(width):
                g[j] += decay * p[j]
        for j in range(width):
            s[j] = alpha * s[j] + new * g[j] * g[j]
            spread[j] = s[j]
        if centered:
            a = average[rows[k] * width : (rows[k] + 1) * width]
            for j in range(width):
                a[j] += new * (g[j] - a[j])
                spread[j] -= a[j] * a[j]
        for j in range(width):
            g[j] /= np.sqrt(spread[j]) + eps
        if buffered:
            b = buffer[rows[k] * width : (rows[k] + 1) * width]
            for j in range(width):
                b[j] = momentum * b[j] + g[j]
                g[j] = b[j]
        for j in range(width):
            p[j] -= lr * g[j]
