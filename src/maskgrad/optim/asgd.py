"""Averaged SGD for dense, sparse and masked gradients."""

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
    finite,
    non_negative,
)
from maskgrad.optim.numbers import Numbers, State, shared_numbers
from maskgrad.optim.optimizer import MaskedOptimizer

__all__ = ["ASGD"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ASGDNumbers(Numbers):
    """ASGD's hyperparameters as plain numbers."""

    lr: float
    lambd: float
    alpha: float
    t0: float
    weight_decay: float

    def states(self) -> tuple[State, ...]:
        """The average."""
        return (State("ax", initial=None),)

    def scalars(self) -> dict[str, float]:
        """Learning rate and weight of the average, each for the step to come."""
        return {"eta": self.lr, "mu": 1.0}

    def update(self, step: float, **scalars: Tensor) -> Update:
        """The update of step number ``step``, counted from 1; ``scalars``: ``eta`` and ``mu`` for this step."""
        rule = partial(
            rules.asgd_,
            lambd=self.lambd,
            eta=float(scalars["eta"]),
            mu=float(scalars["mu"]),
            weight_decay=self.weight_decay,
            maximize=self.maximize,
        )
        later = {
            "eta": self.lr / ((1 + self.lambd * self.lr * step) ** self.alpha),
            "mu": 1 / max(1, step - self.t0),
        }
        return Update(rule, scalars={name: scalars[name].new_tensor(value) for name, value in later.items()})


class ASGD(MaskedOptimizer):
    r"""Averaged SGD whose step costs what its gradient specifies, and which touches nothing else.

    .. math::
        p \leftarrow (1 - \lambda \eta_t)\, p - \eta_t\, g, \qquad \bar p \leftarrow \bar p + \mu_t\, (p - \bar p)

    .. math::
        \eta_{t+1} = \frac{\mathrm{lr}}{(1 + \lambda\, \mathrm{lr}\, t)^\alpha}, \qquad
        \mu_{t+1} = \frac{1}{\max(1, t - t_0)}

    for specified entries only: parameter and average of the others stay bit for bit. ``t`` counts the steps of the
    parameter. Duplicates are merged first.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: learning rate, a number or a tensor with one element.
        lambd: decay term.
        alpha: power with which the learning rate falls.
        t0: the step after which averaging starts.
        weight_decay: L2 penalty on specified entries.
        foreach: of dense gradients, all parameters with each operation, as in PyTorch; None: the faster way.
        maximize: ascend instead.
        differentiable: must be False.
        capturable: keep the step count on the parameter's device, as PyTorch does; graphs are not captured.
        unspecified: ``"skip"``: entries without a gradient are left alone; ``"zero"``: their gradient is zero, and
            they get what a dense step gives them when they are next stepped or read.
        state: ``"full"``: one average for each entry; averages of rows are not to be had.

    State:
        ``"step"``, ``"eta"``, ``"mu"`` and the average ``"ax"``, as in ``torch.optim.ASGD``; state dicts can be
        exchanged in mid-run, both ways. The average starts as a copy of the parameter, so that an entry which
        never got a gradient has the right one.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is out of its range, NaN or infinite; an option is not available.

    Dense equivalent: ``torch.optim.ASGD``, to float32 rounding.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.ASGD([p], lr=0.5)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [1.0], (3,))
        >>> optimizer.step()
        >>> optimizer.state[p]["ax"]
        tensor([1.0000, 0.4999, 1.0000])

    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J. Control Optim. 30
    (1992); ``torch.optim.ASGD``.
    """

    _torch = torch.optim.ASGD
    _state_names = frozenset({"step", "eta", "mu", "ax"})
    _no_row_state = "ASGD has no second moment, of which one value per row could do"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
        *,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        defaults = {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
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
    def _numbers(group: dict[str, Any]) -> ASGDNumbers:
        return ASGDNumbers(
            lr=non_negative("lr", group["lr"]),
            weight_decay=non_negative("weight_decay", group["weight_decay"]),
            lambd=non_negative("lambd", group["lambd"]),
            alpha=finite("alpha", group["alpha"]),
            t0=finite("t0", group["t0"]),
            **(shared_numbers(group) | {"on_device": True}),
        )
