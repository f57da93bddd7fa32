r"""One optimizer step on the rows that have a gradient, in ordinary PyTorch.

With :math:`g` the merged gradient of a touched row times ``factor``, plus ``weight_decay`` times the row (Adam may
decay the row itself instead):

.. math:: \text{SGD:}\quad b \leftarrow \mu b + (1 - \tau) g \ \text{(the first time } b \leftarrow g), \qquad
          p \mathrel{-}= \text{lr} \cdot (g + \mu b \text{ if Nesterov}, \text{else } b \text{; without momentum } g)
.. math:: \text{Adagrad:}\quad s \mathrel{+}= g^2 \ \text{(row-wise: its mean over the row)}, \qquad
          p \mathrel{-}= \text{lr} \cdot g / (\sqrt{s} + \text{eps})
.. math:: \text{Adam:}\quad m \mathrel{+}= (1 - \beta_1) (g - m), \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2,
          \qquad p \mathrel{-}= \frac{\text{lr}}{1 - \beta_1^t} \cdot m / (\sqrt{v / (1 - \beta_2^t)} + \text{eps})
.. math:: \text{RMSprop:}\quad v \leftarrow \alpha v + (1 - \alpha) g^2, \qquad
          p \mathrel{-}= \text{lr} \cdot g / (\sqrt{v - \bar g^2 \text{ if centered}} + \text{eps}) \
          \text{(or that enters a buffer)}

These are the formulas of ``torch.optim``. Rows without a gradient keep parameter and state bit for bit. Half
parameters are updated in float32 and rounded once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from maskgrad.kernels.reference.coalescing import merge_rows
from maskgrad.kernels.reference.reductions import HALVES

__all__ = ["adagrad_rows_", "adam_rows_", "rmsprop_rows_", "rowwise_adagrad_rows_", "sgd_rows_"]


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
    factor: float = 1.0,
    first_step: Tensor | None = None,
) -> None:
    """SGD on the rows ``indices`` (n,); ``first_step`` (num_rows,) marks buffers to start, and is cleared."""
    rows, p, g = _read(param, indices, values, factor, weight_decay)
    if momentum_buffer is not None and momentum != 0:
        b = momentum * _taken(momentum_buffer, rows) + (1 - dampening) * g
        if first_step is not None:
            fresh = first_step.index_select(0, rows).view(-1, *(1 for _ in param.shape[1:]))
            b = torch.where(fresh, g, b)
            first_step.index_fill_(0, rows, False)
        _put(momentum_buffer, rows, b)
        g = g + momentum * b if nesterov else b
    _put(param, rows, p - lr * g)


def adagrad_rows_(
    param: Tensor,
    state_sum: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    lr: float,
    weight_decay: float,
    eps: float,
    factor: float = 1.0,
) -> None:
    """Adagrad on the rows ``indices`` (n,); ``lr`` is already decayed."""
    rows, p, g = _read(param, indices, values, factor, weight_decay)
    s = _taken(state_sum, rows) + g * g
    _put(state_sum, rows, s)
    _put(param, rows, p - lr * g / (s.sqrt() + eps))


def rowwise_adagrad_rows_(
    param: Tensor,
    state_sum: Tensor,
    indices: Tensor,
    values: Tensor,
    *,
    lr: float,
    weight_decay: float,
    eps: float,
    factor: float = 1.0,
) -> None:
    """Adagrad with one state for each row: ``state_sum`` has num_rows entries, of any shape."""
    rows, p, g = _read(param, indices, values, factor, weight_decay)
    states = state_sum.view(-1)
    squares = g.flatten(1).square() if g.ndim > 1 else g.square().unsqueeze(1)
    s = _taken(states, rows) + squares.mean(1)
    _put(states, rows, s)
    _put(param, rows, p - lr * g / (s.sqrt() + eps).view(-1, *(1 for _ in param.shape[1:])))


def adam_rows_(
    param: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor | None,
    indices: Tensor,
    values: Tensor,
    *,
    step: float,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    factor: float = 1.0,
) -> None:
    """Adam on the rows ``indices`` (n,); ``step`` counts from 1."""
    rows, p, g = _read(param, indices, values, factor, 0.0 if decoupled else weight_decay)
    if decoupled:
        p = p * (1 - lr * weight_decay)
    m = _taken(exp_avg, rows).lerp(g, 1 - beta1)
    v = beta2 * _taken(exp_avg_sq, rows) + (1 - beta2) * g * g
    _put(exp_avg, rows, m)
    _put(exp_avg_sq, rows, v)
    if max_exp_avg_sq is not None:
        v = torch.maximum(_taken(max_exp_avg_sq, rows), v)
        _put(max_exp_avg_sq, rows, v)
    root = v.sqrt() / math.sqrt(1 - beta2**step) + eps
    _put(param, rows, p - lr / (1 - beta1**step) * m / root)


def rmsprop_rows_(
    param: Tensor,
    square_avg: Tensor,
    grad_avg: Tensor | None,
    momentum_buffer: Tensor | None,
    indices: Tensor,
    values: Tensor,
    *,
    lr: float,
    alpha: float,
    eps: float,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    factor: float = 1.0,
) -> None:
    """RMSprop on the rows ``indices`` (n,)."""
    rows, p, g = _read(param, indices, values, factor, weight_decay)
    v = alpha * _taken(square_avg, rows) + (1 - alpha) * g * g
    _put(square_avg, rows, v)
    if grad_avg is not None:
        mean = _taken(grad_avg, rows).lerp(g, 1 - alpha)
        _put(grad_avg, rows, mean)
        v = v - mean * mean
    change = g / (v.sqrt() + eps)
    if momentum_buffer is not None and momentum != 0:
        change = momentum * _taken(momentum_buffer, rows) + change
        _put(momentum_buffer, rows, change)
    _put(param, rows, p - lr * change)


def _read(
    param: Tensor, indices: Tensor, values: Tensor, factor: float, weight_decay: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The touched rows, what the parameter holds there, and the merged gradient, decay included."""
    rows, g = merge_rows(indices, _widened(values), param.shape[0])
    g = g.to(torch.float32 if param.dtype in HALVES else param.dtype)
    if factor != 1:
        g = g * factor
    p = _taken(param, rows)
    return rows, p, g + weight_decay * p if weight_decay != 0 else g


def _taken(table: Tensor, rows: Tensor) -> Tensor:
    return _widened(table.index_select(0, rows))


def _put(table: Tensor, rows: Tensor, values: Tensor) -> None:
    table.index_copy_(0, rows, values.to(table.dtype))


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in HALVES else x
