"""Adamax for dense, sparse and masked gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, maximum
from torch.optim.optimizer import ParamsT

from maskgrad.kernels.updates.formulas import move_, penalized, remaining
from maskgrad.kernels.updates.specified import EVERY, Specified
from maskgrad.optim.optimizer import CorrectionOption, MaskedOptimizer, StateOption, UnspecifiedOption
from maskgrad.optim.rule import Rule, State

__all__ = ["Adamax"]


def adamax_rule_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_inf: Tensor,
    *,
    step: Any,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    """One Adamax step."""
    beta1, beta2 = betas
    grad = penalized(param, grad, weight_decay, maximize)
    exp_avg.lerp_(grad, 1 - beta1)
    largest = specified.row_amax(grad.abs().add_(eps), exp_inf)
    exp_inf.copy_(maximum(exp_inf.mul_(beta2), largest))
    move_(param, exp_avg, exp_inf, lr / remaining(beta1, step))


class Adamax(MaskedOptimizer, torch.optim.Adamax):
    r"""Implements Adamax, Adam with the infinity norm, for dense, sparse and masked gradients.

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad u \leftarrow \max(\beta_2 u, |g| + \epsilon), \qquad
        p \leftarrow p - \frac{\mathrm{lr}}{1 - \beta_1^t} \cdot \frac{m}{u}

    ``t`` counts the steps of the parameter.

    Args:
        betas: decay rates of the first moment and of the infinity norm, each at least 0 and less than 1.
        eps: added to the absolute value of the gradient.
        state: ``"full"``: one value of each state for each entry; ``"row"``: one value of ``"exp_inf"`` for each row of
            the first dimension, with the largest of the row's specified entries for :math:`|g|`.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.Adamax([p], lr=0.1)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [5.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.9000, 1.0000])

    Source: Kingma and Ba, "Adam", ICLR 2015, section 7.1; ``torch.optim.Adamax``.
    """

    _rule = Rule(
        adamax_rule_,
        states=(
            State("exp_avg", "first moment"),
            State("exp_inf", "infinity norm, decaying", statistic=True),
        ),
    )
    _torch = torch.optim.Adamax

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
        bias_correction: CorrectionOption = "steps",
    ) -> None:
        super().__init__(params, locals())
