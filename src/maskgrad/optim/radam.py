"""RAdam for dense, sparse and masked gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
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

__all__ = ["RAdam"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RAdamNumbers(Numbers):
    """RAdam's hyperparameters as plain numbers."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool

    def states(self) -> tuple[State, ...]:
        """Two moments."""
        return (State("exp_avg"), State("exp_avg_sq", statistic=True))

    def update(self, step: float, **scalars: Tensor) -> Update:
        """The update of step number ``step``, counted from 1."""
        names = ("lr", "beta1", "beta2", "eps", "weight_decay", "decoupled", "maximize")
        return Update(partial(rules.radam_, step=step, **{name: getattr(self, name) for name in names}))


class RAdam(MaskedOptimizer):
    r"""Rectified Adam whose step costs what its gradient specifies, and which touches nothing else.

    .. math::
        p \leftarrow p - \mathrm{lr}\; \frac{m}{1 - \beta_1^t} \cdot
        \begin{cases} r_t \sqrt{1 - \beta_2^t} / (\sqrt{v} + \epsilon) & \rho_t > 5 \\ 1 & \text{else} \end{cases}

    with Adam's moments :math:`m` and :math:`v`, where :math:`\rho_t` says how many squares the second has seen and
    the rectification :math:`r_t` grows from 0 to 1 with it; for specified entries only: parameter and both moments
    of the others stay bit for bit. ``t`` counts the steps of the parameter. Duplicates are merged before the square.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: learning rate, a number or a tensor with one element.
        betas: decay of the two moments, each at least 0 and less than 1.
        eps: added to the root.
        weight_decay: L2 penalty on specified entries.
        decoupled_weight_decay: decay the parameter itself, as AdamW does.
        foreach: of dense gradients, all parameters with each operation, as in PyTorch; None: the faster way.
        maximize: ascend instead.
        capturable: keep the step count on the parameter's device, as PyTorch does; graphs are not captured.
        differentiable: must be False.
        unspecified: ``"skip"``: entries without a gradient are left alone; ``"zero"``: their gradient is zero, and
            they get what a dense step gives them when they are next stepped or read.
        state: ``"full"``: two state values for each entry; ``"row"``: one second moment for each row of the
            first dimension, of the mean of squares over the row's specified entries.

    State:
        ``"step"``, ``"exp_avg"`` and ``"exp_avg_sq"``, as in ``torch.optim.RAdam``; state dicts can be exchanged in
        mid-run, both ways.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is out of its range, NaN or infinite; an option is not available.

    Dense equivalent: ``torch.optim.RAdam``, to float32 rounding.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.RAdam([p], lr=0.1)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [5.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.5000, 1.0000])

    Source: Liu et al., "On the variance of the adaptive learning rate and beyond", ICLR 2020; ``torch.optim.RAdam``.
    """

    _torch = torch.optim.RAdam
    _state_names = frozenset({"step", "exp_avg", "exp_avg_sq"})
    _late_options = MappingProxyType({"decoupled_weight_decay": False})

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "capturable": capturable,
            "differentiable": differentiable,
            "unspecified": unspecified,
            "state": state,
        }
        super().__init__(params, defaults)

    @staticmethod
    def _numbers(group: dict[str, Any]) -> RAdamNumbers:
        beta1, beta2 = betas(group["betas"])
        return RAdamNumbers(
            lr=non_negative("lr", group["lr"]),
            eps=non_negative("eps", group["eps"]),
            weight_decay=non_negative("weight_decay", group["weight_decay"]),
            beta1=beta1,
            beta2=beta2,
            decoupled=bool(group["decoupled_weight_decay"]),
            **shared_numbers(group),
        )
