"""Adadelta for dense, sparse and masked gradients."""

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
    non_negative,
)
from maskgrad.optim.numbers import Numbers, State, shared_numbers
from maskgrad.optim.optimizer import MaskedOptimizer

__all__ = ["Adadelta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdadeltaNumbers(Numbers):
    """Adadelta's hyperparameters as plain numbers."""

    lr: float
    rho: float
    eps: float
    weight_decay: float

    def states(self) -> tuple[State, ...]:
        """Mean squares of gradients and of changes."""
        return (State("square_avg", statistic=True), State("acc_delta", statistic=True))

    def update(self, step: float, **scalars: Tensor) -> Update:
        """The update, the same at each step."""
        names = ("lr", "rho", "eps", "weight_decay", "maximize")
        return Update(partial(rules.adadelta_, **{name: getattr(self, name) for name in names}))


class Adadelta(MaskedOptimizer):
    r"""Adadelta whose step costs what its gradient specifies, and which touches nothing else.

    .. math::
        v \leftarrow \rho v + (1 - \rho) g^2, \qquad
        \Delta = g \sqrt{u + \epsilon} / \sqrt{v + \epsilon}, \qquad
        u \leftarrow \rho u + (1 - \rho) \Delta^2, \qquad p \leftarrow p - \mathrm{lr}\; \Delta

    for specified entries only: parameter and state of the others stay bit for bit. Duplicates are merged before the
    square.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: learning rate, a number or a tensor with one element.
        rho: decay of both means of squares, from 0 to 1.
        eps: added below both roots.
        weight_decay: L2 penalty on specified entries.
        foreach: of dense gradients, all parameters with each operation, as in PyTorch; None: the faster way.
        capturable: keep the step count on the parameter's device, as PyTorch does; graphs are not captured.
        maximize: ascend instead.
        differentiable: must be False.
        unspecified: ``"skip"``: entries without a gradient are left alone; ``"zero"``: their gradient is zero, and
            they get what a dense step gives them when they are next stepped or read.
        state: ``"full"``: two state values for each entry; ``"row"``: two for each row of the first dimension, means of
            squares over the row's specified entries.

    State:
        ``"step"``, ``"square_avg"`` (of gradients) and ``"acc_delta"`` (of changes), as in
        ``torch.optim.Adadelta``; state dicts can be exchanged in mid-run, both ways.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is out of its range, NaN or infinite; an option is not available.

    Dense equivalent: ``torch.optim.Adadelta``, to float32 rounding.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.Adadelta([p], eps=1.0)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [1.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.0465, 1.0000])

    Source: Zeiler, "ADADELTA: an adaptive learning rate method", 2012; ``torch.optim.Adadelta``.
    """

    _torch = torch.optim.Adadelta
    _state_names = frozenset({"step", "square_avg", "acc_delta"})

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        defaults = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "capturable": capturable,
            "maximize": maximize,
            "differentiable": differentiable,
            "unspecified": unspecified,
            "state": state,
        }
        super().__init__(params, defaults)

    @staticmethod
    def _numbers(group: dict[str, Any]) -> AdadeltaNumbers:
        rho = non_negative("rho", group["rho"])
        if rho > 1:
            raise ValueError(f"rho must be at least 0 and at most 1, got {rho}")
        return AdadeltaNumbers(
            lr=non_negative("lr", group["lr"]),
            eps=non_negative("eps", group["eps"]),
            weight_decay=non_negative("weight_decay", group["weight_decay"]),
            rho=rho,
            **shared_numbers(group),
        )
