"""Adadelta for dense, sparse and masked gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.optim.hyperparameters import (
    StateOption,
    UnspecifiedOption,
    non_negative,
)
from maskgrad.optim.lazy.linear import LinearStep
from maskgrad.optim.lazy.table import IdleStep
from maskgrad.optim.optimizer import MaskedOptimizer
from maskgrad.optim.rule import Numbers, Rule, State, penalized
from maskgrad.optim.specified import EVERY, Specified

__all__ = ["Adadelta"]


def adadelta_rule_(
    param: Tensor,
    grad: Tensor,
    square_avg: Tensor,
    acc_delta: Tensor,
    *,
    lr: float,
    rho: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    """One Adadelta step."""
    grad = penalized(param, grad, weight_decay, maximize)
    specified.add_square_(square_avg.mul_(rho), grad, 1 - rho)
    delta = acc_delta.add(eps).sqrt_().div_(square_avg.add(eps).sqrt_()).mul(grad)
    specified.add_square_(acc_delta.mul_(rho), delta, 1 - rho)
    param.add_(delta, alpha=-lr)


def up_to_one(name: str, value: Any) -> float:
    """A number from 0 to 1."""
    number = non_negative(name, value)
    if number > 1:
        raise ValueError(f"{name} must be at least 0 and at most 1, got {number}")
    return number


def _idle(n: Numbers, states: int) -> IdleStep | None:
    return LinearStep(factors=(n["rho"],) * 2) if n["weight_decay"] == 0 and n["eps"] > 0 else None


ADADELTA_RULE = Rule(
    adadelta_rule_,
    limits={"lr": non_negative, "rho": up_to_one, "eps": non_negative, "weight_decay": non_negative},
    states=(
        State("square_avg", "mean square of gradients", statistic=True),
        State("acc_delta", "mean square of changes", statistic=True),
    ),
    idle=_idle,
)


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

    _rule = ADADELTA_RULE
    _torch = torch.optim.Adadelta

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
        super().__init__(params, locals())
