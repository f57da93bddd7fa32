"""Adamax for dense, sparse and masked gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.optim import rules
from maskgrad.optim.engine import Update
from maskgrad.optim.hyperparameters import (
    StateOption,
    UnspecifiedOption,
    betas,
    non_negative,
)
from maskgrad.optim.numbers import Numbers, State, shared_numbers
from maskgrad.optim.optimizer import MaskedOptimizer

__all__ = ["Adamax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamaxNumbers(Numbers):
    """Adamax's hyperparameters as plain numbers."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float

    def states(self) -> tuple[State, ...]:
        """Mean and largest gradient."""
        return (State("exp_avg"), State("exp_inf", statistic=True))

    def update(self, step: float, **scalars: Tensor) -> Update:
        """The update of step number ``step``, counted from 1."""
        names = ("lr", "beta1", "beta2", "eps", "weight_decay", "maximize")
        return Update(partial(rules.adamax_, step=step, **{name: getattr(self, name) for name in names}))


class Adamax(MaskedOptimizer):
    r"""Adam with the infinity norm, whose step costs what its gradient specifies, and which touches nothing else.

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad u \leftarrow \max(\beta_2 u, |g| + \epsilon), \qquad
        p \leftarrow p - \frac{\mathrm{lr}}{1 - \beta_1^t} \cdot \frac{m}{u}

    for specified entries only: parameter and state of the others stay bit for bit. ``t`` counts the steps of the
    parameter. Duplicates are merged first.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: learning rate, a number or a tensor with one element.
        betas: decay of the mean and of the largest gradient, each at least 0 and less than 1.
        eps: added to the size of the gradient.
        weight_decay: L2 penalty on specified entries.
        foreach: of dense gradients, all parameters with each operation, as in PyTorch; None: the faster way.
        maximize: ascend instead.
        differentiable: must be False.
        capturable: keep the step count on the parameter's device, as PyTorch does; graphs are not captured.
        unspecified: ``"skip"``: entries without a gradient are left alone; ``"zero"``: their gradient is zero, and
            they get what a dense step gives them when they are next stepped or read.
        state: ``"full"``: two state values for each entry; ``"row"``: one ``"exp_inf"`` for each row of the first
            dimension, with the largest of the row's specified entries for :math:`|g|`.

    State:
        ``"step"``, ``"exp_avg"`` and ``"exp_inf"``, as in ``torch.optim.Adamax``; state dicts can be exchanged in
        mid-run, both ways.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is out of its range, NaN or infinite; an option is not available.

    Dense equivalent: ``torch.optim.Adamax``, to float32 rounding.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.Adamax([p], lr=0.1)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [5.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.9000, 1.0000])

    Source: Kingma and Ba, "Adam", ICLR 2015, section 7.1; ``torch.optim.Adamax``.
    """

    _torch = torch.optim.Adamax
    _state_names = frozenset({"step", "exp_avg", "exp_inf"})

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
            "unspecified": unspecified,
            "state": state,
        }
        super().__init__(params, defaults)

    @staticmethod
    def _numbers(group: dict[str, Any]) -> AdamaxNumbers:
        beta1, beta2 = betas(group["betas"])
        return AdamaxNumbers(
            lr=non_negative("lr", group["lr"]),
            eps=non_negative("eps", group["eps"]),
            weight_decay=non_negative("weight_decay", group["weight_decay"]),
            beta1=beta1,
            beta2=beta2,
            **shared_numbers(group),
        )
