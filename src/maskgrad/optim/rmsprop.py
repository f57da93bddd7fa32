"""RMSprop for dense, sparse and masked gradients."""

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
from maskgrad.optim.fused import fused_rmsprop
from maskgrad.optim.hyperparameters import (
    StateOption,
    UnspecifiedOption,
    non_negative,
)
from maskgrad.optim.numbers import Numbers, State, shared_numbers
from maskgrad.optim.optimizer import MaskedOptimizer

__all__ = ["RMSprop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RMSpropNumbers(Numbers):
    """RMSprop's hyperparameters as plain numbers."""

    lr: float
    alpha: float
    eps: float
    weight_decay: float
    momentum: float
    centered: bool

    def __post_init__(self) -> None:
        if self.row and self.centered:
            raise ValueError(
                "state='row' is not available with centered=True: the square of an entry's mean gradient may exceed "
                "the mean of squares of its row; use centered=False or state='full'"
            )

    def states(self) -> tuple[State, ...]:
        """Mean of squares, mean, momentum."""
        states = [State("square_avg", statistic=True)]
        if self.centered:
            states.append(State("grad_avg"))
        if self.momentum > 0:
            states.append(State("momentum_buffer"))
        return tuple(states)

    def update(self, step: float, **scalars: Tensor) -> Update:
        """The update, the same at each step."""
        names = ("lr", "alpha", "eps", "weight_decay", "momentum", "maximize")
        numbers = {name: getattr(self, name) for name in names}
        fused = None if self.row else fused_rmsprop(numbers, self.centered)
        return Update(partial(rules.rmsprop_, centered=self.centered, **numbers), fused)


class RMSprop(MaskedOptimizer):
    r"""RMSprop whose step costs what its gradient specifies, and which touches nothing else.

    .. math::
        g \leftarrow g + \lambda p, \qquad v \leftarrow \alpha v + (1 - \alpha) g^2, \qquad
        p \leftarrow p - \mathrm{lr}\; g / (\sqrt{v} + \epsilon)

    for specified entries only: parameter and state of the others stay bit for bit. Duplicates are merged before the
    square.
    With ``momentum`` :math:`\mu` the step is :math:`\mathrm{lr}\; b`, where
    :math:`b \leftarrow \mu b + g / (\sqrt{v} + \epsilon)`.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: learning rate, a number or a tensor with one element.
        alpha: decay of the mean of squares, at least 0.
        eps: added to the root.
        weight_decay: L2 penalty on specified entries.
        momentum: factor of the buffer.
        centered: divide by the standard deviation: the squared mean gradient is taken off the mean of squares.
        capturable: keep the step count on the parameter's device, as PyTorch does; graphs are not captured.
        foreach: of dense gradients, all parameters with each operation, as in PyTorch; None: the faster way.
        maximize: ascend instead.
        differentiable: must be False.
        unspecified: ``"skip"``: entries without a gradient are left alone; ``"zero"``: their gradient is zero, and
            they get what a dense step gives them when they are next stepped or read.
        state: ``"full"``: one mean of squares for each entry; ``"row"``: one for each row of the first dimension, over
            the row's specified entries; not if centered.

    State:
        ``"step"``, ``"square_avg"``, with momentum ``"momentum_buffer"``, if centered ``"grad_avg"``, as in
        ``torch.optim.RMSprop``; state dicts can be exchanged in mid-run, both ways.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is out of its range, NaN or infinite; an option is not available.

    Dense equivalent: ``torch.optim.RMSprop``, to float32 rounding.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.RMSprop([p], lr=0.1, alpha=0.75)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [2.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.8000, 1.0000])

    Source: Hinton, lecture 6e of "Neural networks for machine learning", 2012; ``torch.optim.RMSprop``.
    """

    _torch = torch.optim.RMSprop
    _state_names = frozenset({"step", "square_avg"})
    _optional_state_names = frozenset({"momentum_buffer", "grad_avg"})
    _late_options = MappingProxyType({"momentum": 0, "centered": False})

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        *,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            "capturable": capturable,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "unspecified": unspecified,
            "state": state,
        }
        super().__init__(params, defaults)

    @staticmethod
    def _numbers(group: dict[str, Any]) -> RMSpropNumbers:
        return RMSpropNumbers(
            lr=non_negative("lr", group["lr"]),
            alpha=non_negative("alpha", group["alpha"]),
            eps=non_negative("eps", group["eps"]),
            weight_decay=non_negative("weight_decay", group["weight_decay"]),
            momentum=non_negative("momentum", group["momentum"]),
            centered=bool(group["centered"]),
            **shared_numbers(group),
        )
