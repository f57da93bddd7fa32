"""RMSprop for dense, sparse and masked gradients."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.optim.fused import fused_rmsprop
from maskgrad.optim.hyperparameters import (
    StateOption,
    UnspecifiedOption,
    flag,
    non_negative,
)
from maskgrad.optim.lazy.linear import LinearStep
from maskgrad.optim.lazy.table import IdleStep
from maskgrad.optim.optimizer import MaskedOptimizer
from maskgrad.optim.rule import Numbers, Rule, State, penalized
from maskgrad.optim.specified import EVERY, Specified

__all__ = ["RMSprop"]


def rmsprop_rule_(
    param: Tensor,
    grad: Tensor,
    square_avg: Tensor,
    *others: Tensor,
    lr: float,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    """One step; ``others`` are the momentum if ``momentum`` is not 0, then the mean if ``centered``."""
    grad = penalized(param, grad, weight_decay, maximize)
    specified.add_square_(square_avg.mul_(alpha), grad, 1 - alpha)
    if centered:
        mean = others[-1]
        mean.lerp_(grad, 1 - alpha)
        root = square_avg.addcmul(mean, mean, value=-1).sqrt_().add_(eps)
    else:
        root = square_avg.sqrt().add_(eps)
    if momentum > 0:
        buffer = others[0]
        buffer.mul_(momentum).addcdiv_(grad, root)
        param.add_(buffer, alpha=-lr)
    else:
        param.addcdiv_(grad, root, value=-lr)


def _idle(n: Numbers, states: int) -> IdleStep | None:
    if n["weight_decay"] != 0 or n["eps"] == 0:
        return None
    factors, momentum = (n["alpha"],) * states, n["momentum"]
    if momentum == 0:
        return LinearStep(factors=factors)
    return LinearStep(((1.0, -n["lr"] * momentum), (0.0, momentum)), factors=factors, buffer=1)


def _check(n: Numbers, row: bool) -> None:
    if row and n["centered"]:
        raise ValueError(
            "state='row' is not available with centered=True: the square of an entry's mean gradient may exceed "
            "the mean of squares of its row; use centered=False or state='full'"
        )


RMSPROP_RULE = Rule(
    rmsprop_rule_,
    limits={
        "lr": non_negative,
        "alpha": non_negative,
        "eps": non_negative,
        "weight_decay": non_negative,
        "momentum": non_negative,
        "centered": flag,
    },
    states=(
        State("square_avg", "mean of squares", statistic=True),
        State("momentum_buffer", "momentum", needs="momentum"),
        State("grad_avg", "mean gradient: the centered form", needs="centered"),
    ),
    check=_check,
    fused=fused_rmsprop,
    idle=_idle,
)


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

    _rule = RMSPROP_RULE
    _torch = torch.optim.RMSprop
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
        super().__init__(params, locals())
