"""RMSprop for dense, sparse and masked gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.kernels.updates import formulas
from maskgrad.optim.lazy.linear import LinearStep
from maskgrad.optim.optimizer import MaskedOptimizer, StateOption, UnspecifiedOption
from maskgrad.optim.rule import Fused, Numbers, Rule, State, signed

__all__ = ["RMSprop"]


def _closed_form(n: Numbers, states: int) -> LinearStep | None:
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


def _fused(n: Numbers, row: bool) -> Fused | None:
    if row or n["centered"]:
        return None
    numbers = signed(n, "lr", "alpha", "eps", "weight_decay", "momentum")
    return Fused("rmsprop", numbers, lambda states: [states[0], states[1] if n["momentum"] else None])


class RMSprop(MaskedOptimizer, torch.optim.RMSprop):
    r"""Implements RMSprop for dense, sparse and masked gradients.

    .. math::
        g \leftarrow g + \lambda p, \qquad v \leftarrow \alpha v + (1 - \alpha) g^2, \qquad
        p \leftarrow p - \mathrm{lr}\; g / (\sqrt{v} + \epsilon)

    With ``momentum`` :math:`\mu` the step is :math:`\mathrm{lr}\; b`, where
    :math:`b \leftarrow \mu b + g / (\sqrt{v} + \epsilon)`.

    Args:
        alpha: smoothing constant of the mean of squares, at least 0.
        momentum: momentum factor.
        centered: divide by an estimate of the standard deviation: the square of the mean gradient is subtracted from
            the mean of squares. Not available with ``state="row"``.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.RMSprop([p], lr=0.1, alpha=0.75)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [2.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.8000, 1.0000])

    Source: Hinton, lecture 6e of "Neural networks for machine learning", 2012; ``torch.optim.RMSprop``.
    """

    _rule = Rule(
        formulas.rmsprop_,
        states=(
            State("square_avg", "mean of squares", statistic=True),
            State("momentum_buffer", "momentum", needs="momentum"),
            State("grad_avg", "mean gradient", needs="centered"),
        ),
        check=_check,
        fused=_fused,
        closed_form=_closed_form,
    )
    _torch = torch.optim.RMSprop
    _late_options = ("momentum", "centered")

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
