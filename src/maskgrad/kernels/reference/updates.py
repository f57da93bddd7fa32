r"""One optimizer step on the rows that have a gradient, in ordinary PyTorch.

With :math:`g` the merged gradient of a touched row (negated first if ``maximize``) plus ``weight_decay`` times the row:

.. math:: \text{Adagrad:}\quad s \mathrel{+}= g^2, \qquad p \mathrel{-}= \text{lr} \cdot g / (\sqrt{s} + \text{eps})
.. math:: \text{SGD:}\quad b \leftarrow \mu b + (1 - \tau) g \ \text{(the first time } b \leftarrow g), \qquad
          p \mathrel{-}= \text{lr} \cdot (g + \mu b \text{ if Nesterov}, \text{else } b \text{; without momentum } g)

These are the formulas of ``torch.optim``. Rows without a gradient keep parameter and state bit for bit. Half
parameters are updated in float32 and rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.reference.coalescing import merge_rows
from maskgrad.kernels.reference.reductions import HALVES


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
    """Adagrad on the rows ``indices`` (n,) with gradients ``values`` (n, *row); ``lr`` is already decayed."""
    rows, g = _merged_gradient(param, indices, values, maximize)
    p = _widened(param.index_select(0, rows))
    if weight_decay != 0:
        g = g + weight_decay * p
    s = _widened(state_sum.index_select(0, rows)) + g * g
    p = p - lr * g / (s.sqrt() + eps)
    state_sum.index_copy_(0, rows, s.to(state_sum.dtype))
    param.index_copy_(0, rows, p.to(param.dtype))


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
    """SGD on the rows ``indices`` (n,); ``first_step`` (num_rows,) marks buffers to start, and is cleared."""
    rows, g = _merged_gradient(param, indices, values, maximize)
    p = _widened(param.index_select(0, rows))
    if weight_decay != 0:
        g = g + weight_decay * p
    if momentum_buffer is not None and momentum != 0:
        b = momentum * _widened(momentum_buffer.index_select(0, rows)) + (1 - dampening) * g
        if first_step is not None:
            fresh = first_step.index_select(0, rows).view(-1, *(1 for _ in param.shape[1:]))
            b = torch.where(fresh, g, b)
            first_step.index_fill_(0, rows, False)
        momentum_buffer.index_copy_(0, rows, b.to(momentum_buffer.dtype))
        g = g + momentum * b if nesterov else b
    param.index_copy_(0, rows, (p - lr * g).to(param.dtype))


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in HALVES else x


def _merged_gradient(param: Tensor, indices: Tensor, values: Tensor, maximize: bool) -> tuple[Tensor, Tensor]:
    rows, g = merge_rows(indices, _widened(values), param.shape[0])
    g = g.to(torch.float32 if param.dtype in HALVES else param.dtype)
    return rows, -g if maximize else g
