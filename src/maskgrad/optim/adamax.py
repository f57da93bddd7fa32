"""Adamax for dense, sparse and masked gradients."""

from __future__ import annotations

import torch
from torch import Tensor, maximum
from torch.optim.optimizer import ParamsT

from maskgrad.optim.hyperparameters import (
    StateOption,
    UnspecifiedOption,
    betas,
    non_negative,
)
from maskgrad.optim.optimizer import MaskedOptimizer
from maskgrad.optim.rule import Rule, State, penalized
from maskgrad.optim.specified import EVERY, Specified

__all__ = ["Adamax"]


def adamax_rule_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_inf: Tensor,
    *,
    step: float,
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
    param.addcdiv_(exp_avg, exp_inf, value=-lr / (1 - beta1**step))


ADAMAX_RULE = Rule(
    adamax_rule_,
    limits={
        "lr": non_negative,
        "betas": betas,
        "eps": non_negative,
        "weight_decay": non_negative,
    },
    states=(State("exp_avg", "first moment"), State("exp_inf", "largest gradient, decaying", statistic=True)),
)


class Adamax(MaskedOptimizer):
    r"""Adam with the infinity norm, whose step costs what its gradient specifies, and which touches nothing else.

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad u \leftarrow \max(\beta_2 u, |g| + \epsilon), \qquad
        p \leftarrow p - \frac{\mathrm{lr}}{1 - \beta_1^t} \cdot \frac{m}{u}

    for specified entries only: parameter and state of the others stay bit for bit. ``t`` counts the steps of the
    parameter. Duplicates are merged first.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: learning rate, a number or a tensor with one element.
        betas: decay of the mean and of the largest gradient, each at least 0 and less than 1.
        eps: added to the size of the gradient.
        weight_decay: L2 penalty on specified entries.
        foreach: of dense gradients, all parameters with each operation, as in PyTorch; None: the faster way.
        maximize: ascend instead.
        differentiable: must be False.
        capturable: keep the step count on the parameter's device, as PyTorch does; graphs are not captured.
        unspecified: ``"skip"``: entries without a gradient are left alone; ``"zero"``: their gradient is zero, and
            they get what a dense step gives them when they are next stepped or read.
        state: ``"full"``: two state values for each entry; ``"row"``: one ``"exp_inf"`` for each row of the first
            dimension, with the largest of the row's specified entries for :math:`|g|`.

    State:
        ``"step"``, ``"exp_avg"`` and ``"exp_inf"``, as in ``torch.optim.Adamax``; state dicts can be exchanged in
        mid-run, both ways.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is out of its range, NaN or infinite; an option is not available.

    Dense equivalent: ``torch.optim.Adamax``, to float32 rounding.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.Adamax([p], lr=0.1)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [5.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.9000, 1.0000])

    Source: Kingma and Ba, "Adam", ICLR 2015, section 7.1; ``torch.optim.Adamax``.
    """

    _rule = ADAMAX_RULE
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
    ) -> None:
        super().__init__(params, locals())
