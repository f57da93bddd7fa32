"""Adadelta for dense, sparse and masked gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.kernels.updates.formulas import penalized
from maskgrad.kernels.updates.specified import EVERY, Specified
from maskgrad.optim.hyperparameters import limited
from maskgrad.optim.lazy.linear import LinearStep
from maskgrad.optim.optimizer import MaskedOptimizer, StateOption, UnspecifiedOption
from maskgrad.optim.rule import Numbers, Rule, State

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


def _closed_form(n: Numbers, states: int) -> LinearStep | None:
    return LinearStep(factors=(n["rho"],) * 2) if n["weight_decay"] == 0 and n["eps"] > 0 else None


class Adadelta(MaskedOptimizer, torch.optim.Adadelta):
    r"""Implements Adadelta for dense, sparse and masked gradients.

    .. math::
        v \leftarrow \rho v + (1 - \rho) g^2, \qquad
        \Delta = g \sqrt{u + \epsilon} / \sqrt{v + \epsilon}, \qquad
        u \leftarrow \rho u + (1 - \rho) \Delta^2, \qquad p \leftarrow p - \mathrm{lr}\; \Delta

    Args:
        rho: decay rate of both means of squares, from 0 to 1.
        eps: added under both roots.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.Adadelta([p], eps=1.0)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [1.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.0465, 1.0000])

    Source: Zeiler, "ADADELTA: an adaptive learning rate method", 2012; ``torch.optim.Adadelta``.
    """

    _rule = Rule(
        adadelta_rule_,
        states=(
            State("square_avg", "mean square of gradients", statistic=True),
            State("acc_delta", "mean square of updates", statistic=True),
        ),
        limits={"rho": limited("at least 0 and at most 1", lambda rho: 0 <= rho <= 1)},
        closed_form=_closed_form,
    )
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
