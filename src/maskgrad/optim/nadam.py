"""NAdam for dense, sparse and masked gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.kernels.updates.formulas import decayed, move_, remaining
from maskgrad.kernels.updates.specified import EVERY, Specified
from maskgrad.optim.lazy.moments import MomentStep, moment_step
from maskgrad.optim.optimizer import CorrectionOption, MaskedOptimizer, StateOption, UnspecifiedOption
from maskgrad.optim.rule import Numbers, Rule, State

__all__ = ["NAdam"]


def nadam_rule_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: Any,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled_weight_decay: bool,
    mu: Any,
    mu_next: Any,
    mu_product: Any,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    """One NAdam step; ``mu`` is the momentum of this step, ``mu_next`` of the next, ``mu_product`` of all so far."""
    grad = decayed(param, grad, lr, weight_decay, decoupled_weight_decay, maximize)
    specified.update_moments_(grad, exp_avg, exp_avg_sq, betas)
    root = exp_avg_sq.div(remaining(betas[1], step)).sqrt_().add_(eps)
    move_(param, grad, root, lr * (1.0 - mu) / (1.0 - mu_product))
    move_(param, exp_avg, root, lr * mu_next / (1.0 - mu_product * mu_next))


def _closed_form(n: Numbers, states: int) -> MomentStep | None:
    size = n["lr"] * n["mu_next"] / (1 - n["mu_product"] * n["mu_next"])
    return moment_step(n, size=size, root=1 / math.sqrt(1 - n["betas"][1] ** n["step"]))


def _prepare(n: Numbers, step: Any, scalars: Mapping[str, Tensor]) -> tuple[Numbers, Mapping[str, Tensor]]:
    """Return the momentum of this step and the next, and the product of all so far."""
    mu, mu_next = (n["betas"][0] * (1 - 0.5 * 0.96 ** (t * n["momentum_decay"])) for t in (step, step + 1))
    product = scalars["mu_product"] * mu
    so_far = product if isinstance(step, Tensor) else float(product)
    return {"mu": mu, "mu_next": mu_next, "mu_product": so_far}, {"mu_product": product}


class NAdam(MaskedOptimizer, torch.optim.NAdam):
    r"""Implements NAdam, Adam with Nesterov momentum, for dense, sparse and masked gradients.

    .. math::
        \mu_t = \beta_1 \left(1 - \tfrac{1}{2}\, 0.96^{t \psi}\right), \qquad
        \hat m = \frac{\mu_{t+1}\, m}{1 - \prod_{i \le t+1} \mu_i} +
        \frac{(1 - \mu_t)\, g}{1 - \prod_{i \le t} \mu_i}, \qquad
        p \leftarrow p - \mathrm{lr}\; \frac{\hat m}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    :math:`m` and :math:`v` are Adam's moments; ``t`` and the product of :math:`\mu` count the steps of the parameter.

    Args:
        momentum_decay: :math:`\psi`, rate at which the momentum approaches :math:`\beta_1`.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.NAdam([p], lr=0.1)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [5.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.8944, 1.0000])

    Source: Dozat, "Incorporating Nesterov momentum into Adam", ICLR workshop 2016; ``torch.optim.NAdam``.
    """

    _rule = Rule(
        nadam_rule_,
        states=(State("exp_avg", "first moment"), State("exp_avg_sq", "second moment", statistic=True)),
        scalars={"mu_product": 1.0},
        prepare=_prepare,
        closed_form=_closed_form,
    )
    _torch = torch.optim.NAdam
    _late_options = ("decoupled_weight_decay",)

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
        bias_correction: CorrectionOption = "steps",
    ) -> None:
        super().__init__(params, locals())
