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
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_rows
from maskgrad.kernels.coalescing import merge_rows
from maskgrad.kernels.kernel import FLOATS, HALVES, KERNELS, backend_of, kernel
from maskgrad.kernels.updates import formulas

_ADAGRAD = (
    "(Tensor(a!) param, Tensor(b!) state_sum, Tensor indices, Tensor values, *, float lr, float weight_decay, "
    "float eps, float factor=1.) -> ()"
)


def _check(*tensors: Tensor | None) -> None:
    *_, indices, values = tensors
    assert indices is not None
    assert values is not None
    check_rows(indices, values)


@kernel(
    "(Tensor(a!) param, Tensor(b!)? momentum_buffer, Tensor indices, Tensor values, *, float lr, "
    "float momentum=0., float dampening=0., float weight_decay=0., bool nesterov=False, float factor=1., "
    "Tensor(c!)? first_step=None) -> ()",
    FLOATS,
    least=0,
    check=_check,
)
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
    rows, g = _merged(param, indices, values, factor)
    buffer = momentum_buffer if momentum != 0 else None
    started = None
    if buffer is not None and first_step is not None:
        started = ~first_step.index_select(0, rows).view(-1, *(1 for _ in param.shape[1:]))
        first_step.index_fill_(0, rows, False)
    numbers = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    _step(formulas.sgd_, rows, g, [param, buffer], started, lr=lr, weight_decay=weight_decay, **numbers)


@kernel(_ADAGRAD, FLOATS, least=0, check=_check)
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
    rows, g = _merged(param, indices, values, factor)
    _step(formulas.adagrad_, rows, g, [param, state_sum], lr=lr, weight_decay=weight_decay, eps=eps)


@kernel(_ADAGRAD, FLOATS, least=0, check=_check)
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
    states = state_sum.view(-1, *(1 for _ in param.shape[1:]))
    adagrad_rows_.reference(
        param, states, indices, values, lr=lr, weight_decay=weight_decay, eps=eps, factor=factor
    )


@kernel(
    "(Tensor(a!) param, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, Tensor(d!)? max_exp_avg_sq, "
    "Tensor indices, Tensor values, *, float step, float lr, float beta1, float beta2, float eps, "
    "float weight_decay=0., bool decoupled=False, float factor=1.) -> ()",
    FLOATS,
    least=0,
    check=_check,
)
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
    rows, g = _merged(param, indices, values, factor)
    tables = [param, exp_avg, exp_avg_sq, max_exp_avg_sq]
    numbers = {"step": step, "betas": (beta1, beta2), "decoupled_weight_decay": decoupled}
    _step(formulas.adam_, rows, g, tables, lr=lr, eps=eps, weight_decay=weight_decay, **numbers)


@kernel(
    "(Tensor(a!) param, Tensor(b!) square_avg, Tensor(c!)? grad_avg, Tensor(d!)? momentum_buffer, "
    "Tensor indices, Tensor values, *, float lr, float alpha, float eps, float weight_decay=0., "
    "float momentum=0., float factor=1.) -> ()",
    FLOATS,
    least=0,
    check=_check,
)
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
    rows, g = _merged(param, indices, values, factor)
    buffer = momentum_buffer if momentum != 0 else None
    numbers = {
        "alpha": alpha,
        "momentum": 0.0 if buffer is None else momentum,
        "centered": grad_avg is not None,
    }
    tables = [param, square_avg, buffer, grad_avg]
    _step(formulas.rmsprop_, rows, g, tables, lr=lr, eps=eps, weight_decay=weight_decay, **numbers)


def _merged(param: Tensor, indices: Tensor, values: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Indices of the touched rows, and the merged gradient times ``factor``, in the dtype of the computation."""
    rows, g = merge_rows.reference(indices, _widened(values), param.shape[0])
    return rows, g.to(torch.float32 if param.dtype in HALVES else param.dtype) * factor


def _step(
    formula: Any, rows: Tensor, grad: Tensor, tables: Sequence[Tensor | None], *others: Any, **numbers: Any
) -> None:
    """Apply a formula to the touched rows of parameter and states, which are rounded once."""
    used = [table for table in tables if table is not None]
    taken = [_widened(table.index_select(0, rows)) for table in used]
    formula(taken[0], grad, *taken[1:], *others, maximize=False, **numbers)
    for table, new in zip(used, taken, strict=True):
        table.index_copy_(0, rows, new.to(table.dtype))


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in HALVES else x


def scalars(name: str, numbers: dict[str, Any]) -> tuple[float, ...]:
    """The scalars of a rule as the compiled implementations take them, ``factor`` and the gradient's decay first."""

    def of(*names: str) -> tuple[float, ...]:
        return tuple(float(numbers.get(x, 1.0 if x == "factor" else 0.0)) for x in names)

    if name == "sgd_rows_":
        return *of("factor", "weight_decay", "lr", "momentum"), 1 - of("dampening")[0]
    if name == "adam_rows_":
        factor, decay, lr, beta1, beta2, eps, step = of(
            "factor", "weight_decay", "lr", "beta1", "beta2", "eps", "step"
        )
        coupled, shrink = (0.0, 1 - lr * decay) if numbers.get("decoupled") else (decay, 1.0)
        root = math.sqrt(1 - beta2**step)
        return factor, coupled, lr / (1 - beta1**step), 1 - beta1, beta2, 1 - beta2, root, eps, shrink
    if name == "rmsprop_rows_":
        return *of("factor", "weight_decay", "lr", "alpha"), 1 - of("alpha")[0], *of("eps", "momentum")
    return of("factor", "weight_decay", "lr", "eps")


@torch.no_grad()
def update_table_(
    name: str, tables: Sequence[Tensor | None], indices: Tensor, values: Tensor, **numbers: Any
) -> None:
    """One step on a table, in place, without the overhead of an operator, which is as much as a small step.

    Args:
        name: name of the kernel.
        tables: the parameter, and each state of the rule, or None.
        indices: the rows that have a gradient.
        values: their gradients.
        numbers: the scalars of the rule.
    """
    check_rows(indices, values)
    own = KERNELS[name]
    if (
        numbers.get("first_step") is None
        and own.is_compiled_for(*tables, indices, values)
        and backend_of("maskgrad.kernels.updates.cpu", "update_table")(
            name, tables, indices, values, **numbers
        )
    ):
        torch.autograd.graph.increment_version([t for t in tables if t is not None])
        return
    own(*tables, indices, values, **numbers)
