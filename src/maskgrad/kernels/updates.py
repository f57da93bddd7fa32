"""Merge, then one optimizer step on the touched rows of a table: which body runs.

Every update takes the rows ``indices`` (n,) of ``param`` with the gradients ``values`` (n, *row). Rows that occur
several times are merged first; then the gradient is multiplied by ``factor`` (unscaling, clipping; negative to ascend);
rows without a gradient keep parameter and state bit for bit. Updates win at almost any size, and check indices in the
same words in every body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_rows
from maskgrad.kernels.kernel import FLOATS, Kernel
from maskgrad.kernels.reference import updates as reference
from maskgrad.kernels.selection import compiled_body, runs_compiled

__all__ = [
    "KERNELS",
    "adagrad_rows_",
    "adam_rows_",
    "rmsprop_rows_",
    "rowwise_adagrad_rows_",
    "sgd_rows_",
    "update_tables_",
]


@torch.no_grad()
def _update(name: str, tables: list[Tensor | None], indices: Tensor, values: Tensor, **numbers: Any) -> None:
    check_rows(indices, values)
    assert tables[0] is not None
    marks = numbers.get("first_step")
    fast = runs_compiled(name, tables[0], *tables[1:], indices, values, marks)
    body = getattr(torch.ops.maskgrad if fast else reference, name)
    body(*tables, indices, values, **numbers)


@torch.no_grad()
def update_tables_(
    name: str,
    tables: Sequence[Sequence[Tensor | None]],
    indices: Sequence[Tensor],
    values: Sequence[Tensor],
    **numbers: Any,
) -> None:
    """One step, in place, on several tables by the same numbers: in one pass, if the compiled body knows them all.

    Args:
        name: of the kernel.
        tables: the parameters, and for each state of the rule a list of as many tensors, or of None.
        indices: for each table the rows that have a gradient.
        values: their gradients.
        numbers: of the rule.
    """
    for i, v in zip(indices, values, strict=True):
        check_rows(i, v)
    rows = zip(*tables, strict=True)
    # by the body itself, not through its operator, which costs twice as much as a small step
    together = (
        not indices[0].is_cuda
        and numbers.get("first_step") is None
        and all(
            runs_compiled(name, *(t for t in row if t is not None), i, v)
            for row, i, v in zip(rows, indices, values, strict=True)
        )
    )
    if together and compiled_body("updates", "update_tables")(name, tables, indices, values, **numbers):
        torch.autograd.graph.increment_version([t for kind in tables for t in kind if t is not None])
        return
    for *row, i, v in zip(*tables, indices, values, strict=True):
        _update(name, row, i, v, **numbers)


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
    """One SGD step, in place.

    ``first_step`` (num_rows,), Boolean, marks the rows whose buffer has not been started: it then becomes the
    gradient itself, without dampening, as in ``torch.optim.SGD``, and the mark is cleared.
    """
    _update(
        "sgd_rows_", [param, momentum_buffer], indices, values, lr=lr, momentum=momentum, dampening=dampening,
        weight_decay=weight_decay, nesterov=nesterov, factor=factor, first_step=first_step,
    )  # fmt: skip


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
    """One Adagrad step, in place; ``lr`` is already decayed."""
    _update(
        "adagrad_rows_", [param, state_sum], indices, values, lr=lr, weight_decay=weight_decay, eps=eps, factor=factor
    )  # fmt: skip


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
    """One Adagrad step with one state for each row, the mean of its squares; ``state_sum`` has num_rows entries."""
    _update(
        "rowwise_adagrad_rows_", [param, state_sum], indices, values, lr=lr, weight_decay=weight_decay, eps=eps,
        factor=factor,
    )  # fmt: skip


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
    """One Adam step, in place: AdamW's if ``decoupled``, AMSGrad's with ``max_exp_avg_sq``; ``step`` counts from 1."""
    _update(
        "adam_rows_", [param, exp_avg, exp_avg_sq, max_exp_avg_sq], indices, values, step=step, lr=lr, beta1=beta1,
        beta2=beta2, eps=eps, weight_decay=weight_decay, decoupled=decoupled, factor=factor,
    )  # fmt: skip


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
    """One RMSprop step, in place: centered with ``grad_avg``, with momentum if there is a buffer."""
    _update(
        "rmsprop_rows_", [param, square_avg, grad_avg, momentum_buffer], indices, values, lr=lr, alpha=alpha, eps=eps,
        weight_decay=weight_decay, momentum=momentum, factor=factor,
    )  # fmt: skip


_ADAGRAD = (
    "(Tensor(a!) param, Tensor(b!) state_sum, Tensor indices, Tensor values, *, float lr, float weight_decay, "
    "float eps, float factor=1.) -> ()"
)
KERNELS = (
    Kernel(
        "sgd_rows_", "updates",
        "(Tensor(a!) param, Tensor(b!)? momentum_buffer, Tensor indices, Tensor values, *, float lr, "
        "float momentum=0., float dampening=0., float weight_decay=0., bool nesterov=False, float factor=1., "
        "Tensor(c!)? first_step=None) -> ()",
        FLOATS, 0, "merge, then one SGD step on the touched rows",
    ),
    Kernel("adagrad_rows_", "updates", _ADAGRAD, FLOATS, 0, "merge, then one Adagrad step on the touched rows"),
    Kernel(
        "rowwise_adagrad_rows_", "updates", _ADAGRAD, FLOATS, 0,
        "merge, then one Adagrad step with one state for each row",
    ),
    Kernel(
        "adam_rows_", "updates",
        "(Tensor(a!) param, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, Tensor(d!)? max_exp_avg_sq, Tensor indices, "
        "Tensor values, *, float step, float lr, float beta1, float beta2, float eps, float weight_decay=0., "
        "bool decoupled=False, float factor=1.) -> ()",
        FLOATS, 0, "merge, then one step of Adam, AdamW or AMSGrad on the touched rows",
    ),
    Kernel(
        "rmsprop_rows_", "updates",
        "(Tensor(a!) param, Tensor(b!) square_avg, Tensor(c!)? grad_avg, Tensor(d!)? momentum_buffer, Tensor indices, "
        "Tensor values, *, float lr, float alpha, float eps, float weight_decay=0., float momentum=0., "
        "float factor=1.) -> ()",
        FLOATS, 0, "merge, then one RMSprop step on the touched rows",
    ),
)  # fmt: skip
