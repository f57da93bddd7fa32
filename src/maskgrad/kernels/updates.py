"""Merge, then one optimizer step on the touched rows of a table: which body runs.

Updates win at almost any size, and check indices in the same words in every body.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_rows
from maskgrad.kernels.kernel import FLOATS, Kernel
from maskgrad.kernels.reference import updates as reference
from maskgrad.kernels.selection import runs_on_cpu

__all__ = ["KERNELS", "adagrad_rows_", "sgd_rows_"]

_ops = torch.ops.maskgrad


@torch.no_grad()
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
    """One Adagrad step, in place, on the rows ``indices`` (n,) of ``param`` with gradients ``values`` (n, *row).

    Rows that occur several times are merged first; ``lr`` is already decayed; other rows keep parameter and
    state bit for bit.
    """
    check_rows(indices, values)
    fast = runs_on_cpu("adagrad_rows_", param, state_sum, indices, values)
    body = _ops.adagrad_rows_ if fast else reference.adagrad_rows_
    body(param, state_sum, indices, values, lr=lr, weight_decay=weight_decay, eps=eps, maximize=maximize)


@torch.no_grad()
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
    """One SGD step, in place, on the rows ``indices`` (n,) of ``param`` with gradients ``values`` (n, *row).

    ``first_step`` (num_rows,), Boolean, marks the rows whose buffer has not been started: it then becomes the
    gradient itself, without dampening, as in ``torch.optim.SGD``, and the mark is cleared.
    """
    check_rows(indices, values)
    fast = runs_on_cpu("sgd_rows_", param, momentum_buffer, indices, values, first_step)
    body = _ops.sgd_rows_ if fast else reference.sgd_rows_
    body(
        param, momentum_buffer, indices, values, lr=lr, momentum=momentum, dampening=dampening,
        weight_decay=weight_decay, nesterov=nesterov, maximize=maximize, first_step=first_step,
    )  # fmt: skip


KERNELS = (
    Kernel(
        "adagrad_rows_", "updates",
        "(Tensor(a!) param, Tensor(b!) state_sum, Tensor indices, Tensor values, *, float lr, float weight_decay, "
        "float eps, bool maximize=False) -> ()",
        FLOATS, 0, "merge, then one Adagrad step on the touched rows",
    ),
    Kernel(
        "sgd_rows_", "updates",
        "(Tensor(a!) param, Tensor(b!)? momentum_buffer, Tensor indices, Tensor values, *, float lr, "
        "float momentum=0., float dampening=0., float weight_decay=0., bool nesterov=False, bool maximize=False, "
        "Tensor(c!)? first_step=None) -> ()",
        FLOATS, 0, "merge, then one SGD step on the touched rows",
    ),
)  # fmt: skip
