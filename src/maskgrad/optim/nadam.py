"""NAdam for dense, sparse and masked gradients."""

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

__all__ = ["NAdam"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NAdamNumbers(Numbers):
    """NAdam's hyperparameters as plain numbers."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    momentum_decay: float
    decoupled: bool

    def states(self) -> tuple[State, ...]:
        """Two moments."""
        return (State("exp_avg"), State("exp_avg_sq", statistic=True))

    def scalars(self) -> dict[str, float]:
        """The product of the momenta so far."""
        return {"mu_product": 1.0}

    def update(self, step: float, **scalars: Tensor) -> Update:
        """The update of step number ``step``, counted from 1; ``scalars``: ``mu_product`` before it."""
        mu, mu_next = self._momentum(step), self._momentum(step + 1)
        product = scalars["mu_product"] * mu
        names = ("lr", "beta1", "beta2", "eps", "weight_decay", "decoupled", "maximize")
        numbers = {name: getattr(self, name) for name in names}
        rule = partial(rules.nadam_, step=step, mu=mu, mu_next=mu_next, mu_product=float(product), **numbers)
        return Update(rule, scalars={"mu_product": product})

    def _momentum(self, step: float) -> float:
        return float(self.beta1 * (1.0 - 0.5 * (0.96 ** (step * self.momentum_decay))))


class NAdam(MaskedOptimizer):
    r"""Adam with Nesterov momentum, whose step costs what its gradient specifies, and which touches nothing else.

    .. math::
        \mu_t = \beta_1 \left(1 - \tfrac12\, 0.96^{t \psi}\right), \qquad
        \hat m = \frac{\mu_{t+1}\, m}{1 - \prod_{i \le t+1} \mu_i} +
        \frac{(1 - \mu_t)\, g}{1 - \prod_{i \le t} \mu_i}, \qquad
        p \leftarrow p - \mathrm{lr}\; \frac{\hat m}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    with Adam's moments :math:`m` and :math:`v`, for specified entries only: parameter and both moments of the
    others stay bit for bit. ``t`` and the product of :math:`\mu` count the steps of the parameter. Duplicates are
    merged before the square.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: learning rate, a number or a tensor with one element.
        betas: decay of the two moments, each at least 0 and less than 1.
        eps: added to the root.
        weight_decay: L2 penalty on specified entries.
        momentum_decay: :math:`\psi`, how fast the momentum reaches :math:`\beta_1`.
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
        ``"step"``, ``"mu_product"``, ``"exp_avg"`` and ``"exp_avg_sq"``, as in ``torch.optim.NAdam``; state dicts
        can be exchanged in mid-run, both ways.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is out of its range, NaN or infinite; an option is not available.

    Dense equivalent: ``torch.optim.NAdam``, to float32 rounding.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.NAdam([p], lr=0.1)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [5.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.8944, 1.0000])

    Source: Dozat, "Incorporating Nesterov momentum into Adam", ICLR workshop 2016; ``torch.optim.NAdam``.
    """

    _torch = torch.optim.NAdam
    _state_names = frozenset({"step", "mu_product", "exp_avg", "exp_avg_sq"})
    _late_options = MappingProxyType({"decoupled_weight_decay": False})

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 2e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
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
            "momentum_decay": momentum_decay,
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
    def _numbers(group: dict[str, Any]) -> NAdamNumbers:
        beta1, beta2 = betas(group["betas"])
        return NAdamNumbers(
            lr=non_negative("lr", group["lr"]),
            eps=non_negative("eps", group["eps"]),
            weight_decay=non_negative("weight_decay", group["weight_decay"]),
            momentum_decay=non_negative("momentum_decay", group["momentum_decay"]),
            beta1=beta1,
            beta2=beta2,
            decoupled=bool(group["decoupled_weight_decay"]),
            **shared_numbers(group),
        )
