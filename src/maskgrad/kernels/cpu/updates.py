r"""One optimizer step on the rows that have a gradient: merge duplicates and update, in one pass.

With :math:`g` the sum of the row's gradients (negated if ``maximize``) plus ``weight_decay`` times the row:

.. math:: \text{Adagrad:}\quad s \mathrel{+}= g^2, \qquad p \mathrel{-}= \text{lr} \cdot g / (\sqrt{s} + \text{eps})
.. math:: \text{SGD:}\quad b \leftarrow \mu b + (1 - \tau) g \ \text{(the first time } b \leftarrow g), \qquad
          p \mathrel{-}= \text{lr} \cdot (g + \mu b \text{ if Nesterov}, \text{else } b \text{; without momentum } g)

Indices are sorted first (see ``sorting.py``), so each touched row belongs to one task and is read and written
once; merged gradients never reach memory. An index outside the table is found before anything is written. Half
parameters and rows with gaps are left to the reference.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels.cpu.compiler import array, compiled
from maskgrad.kernels.cpu.sorting import Runs, fits, runs
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.reference import updates as reference


def adagrad_rows_(
    param: Tensor,
    state_sum: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    lr: float,
    weight_decay: float,
    eps: float,
    maximize: bool = False,
) -> None:
    """As in the reference."""
    if not _fusable(param, [state_sum], values):
        reference.adagrad_rows_(
            param, state_sum, indices, values, lr=lr, weight_decay=weight_decay, eps=eps, maximize=maximize
        )
        return
    number = _scalar_type(param)
    found, gradients, width = _gradients(param, indices, values)
    run(
        _adagrad, array(param.view(-1)), array(state_sum.view(-1)), array(found.rows), *gradients, width, number(lr),
        number(weight_decay), number(eps), number(-1 if maximize else 1), tasks=len(found.rows),
        elements=values.numel() * 3,
    )  # fmt: skip


def sgd_rows_(
    param: Tensor,
    momentum_buffer: Tensor | None,
    indices: Tensor,
    values: Tensor,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
    first_step: Tensor | None = None,
) -> None:
    """As in the reference."""
    buffered = momentum_buffer is not None and momentum != 0
    # Numba compiles one version for arrays and one for None otherwise: an unused argument gets a stand-in.
    buffer = momentum_buffer if momentum_buffer is not None and buffered else param
    if not _fusable(param, [buffer], values) or (first_step is not None and not first_step.is_contiguous()):
        reference.sgd_rows_(
            param, momentum_buffer, indices, values, lr=lr, momentum=momentum, dampening=dampening,
            weight_decay=weight_decay, nesterov=nesterov, maximize=maximize, first_step=first_step,
        )  # fmt: skip
        return
    number = _scalar_type(param)
    found, gradients, width = _gradients(param, indices, values)
    fresh = np.empty(0, np.uint8) if first_step is None or not buffered else array(first_step)
    run(
        _sgd, array(param.view(-1)), array(buffer.view(-1)), fresh, array(found.rows), *gradients, width, number(lr),
        number(momentum), number(1 - dampening), number(weight_decay), number(-1 if maximize else 1), buffered,
        nesterov, tasks=len(found.rows), elements=values.numel() * 3,
    )  # fmt: skip


def _fusable(param: Tensor, states: list[Tensor], values: Tensor) -> bool:
    return (
        param.dtype in (torch.float32, torch.float64)
        and all(t.dtype == param.dtype and t.is_contiguous() for t in (param, *states))
        and values.numel() > 0
        and fits(values.shape[0], param.shape[0])
    )


def _scalar_type(param: Tensor) -> Any:
    """Scalars get the type of the parameter: a float64 among them would widen every row."""
    return np.float32 if param.dtype == torch.float32 else np.float64


def _gradients(param: Tensor, indices: Tensor, values: Tensor) -> tuple[Runs, tuple[Any, ...], int]:
    found = runs(indices, param.shape[0])
    values = values.detach().to(param.dtype).contiguous()
    return found, (array(values.view(-1)), found.keys, found.places, found.starts), math.prod(param.shape[1:])


@compiled
def _merge_run(
    v: Any, keys: Any, places: Any, start: int, stop: int, width: int, sign: Any, wide: Any, g: Any
) -> None:
    """Let g = sign * the sum of the run: rounded once, whatever its length."""
    at = np.int64(keys[start] & places) * width
    a = v[at : at + width]
    if stop - start == 1:
        for j in range(width):
            g[j] = sign * a[j]
    elif stop - start == 2:
        at = np.int64(keys[start + 1] & places) * width
        b = v[at : at + width]
        for j in range(width):
            g[j] = sign * (a[j] + b[j])
    else:
        for j in range(width):
            wide[j] = a[j]
        for i in range(start + 1, stop):
            at = np.int64(keys[i] & places) * width
            b = v[at : at + width]
            for j in range(width):
                wide[j] += b[j]
        for j in range(width):
            g[j] = sign * v.dtype.type(wide[j])


@compiled
def _adagrad(
    param: Any, state: Any, rows: Any, v: Any, keys: Any, places: Any, starts: Any, width: int, lr: Any, decay: Any,
    eps: Any, sign: Any, lo: int, hi: int,
) -> None:  # fmt: skip
    g, wide = np.full(width, lr), np.empty(width, np.float64)
    for k in range(lo, hi):
        _merge_run(v, keys, places, starts[k], starts[k + 1], width, sign, wide, g)
        p = param[rows[k] * width : (rows[k] + 1) * width]
        s = state[rows[k] * width : (rows[k] + 1) * width]
        if decay != 0:
            for j in range(width):
                g[j] += decay * p[j]
        for j in range(width):
            s[j] += g[j] * g[j]
            p[j] -= lr * g[j] / (np.sqrt(s[j]) + eps)


@compiled
def _sgd(
    param: Any, buffer: Any, fresh: Any, rows: Any, v: Any, keys: Any, places: Any, starts: Any, width: int, lr: Any,
    momentum: Any, undamped: Any, decay: Any, sign: Any, buffered: bool, nesterov: bool, lo: int, hi: int,
) -> None:  # fmt: skip
    g, wide = np.full(width, lr), np.empty(width, np.float64)
    for k in range(lo, hi):
        _merge_run(v, keys, places, starts[k], starts[k + 1], width, sign, wide, g)
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
