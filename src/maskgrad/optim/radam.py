"""RAdam for dense, sparse and masked gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, where
from torch.optim.optimizer import ParamsT

from maskgrad.kernels.updates.formulas import decayed, remaining
from maskgrad.kernels.updates.specified import EVERY, Specified
from maskgrad.optim.lazy.moments import MomentStep, moment_step
from maskgrad.optim.optimizer import CorrectionOption, MaskedOptimizer, StateOption, UnspecifiedOption
from maskgrad.optim.rule import Numbers, Rule, State

__all__ = ["RAdam"]


def radam_rule_(
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
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    """One RAdam step: Adam's, rectified, after enough steps, and plain momentum until then."""
    grad = decayed(param, grad, lr, weight_decay, decoupled_weight_decay, maximize)
    specified.update_moments_(grad, exp_avg, exp_avg_sq, betas)
    size = plain = lr / remaining(betas[0], step)
    factor = _rectification(step, betas[1])
    if factor is not None:
        rectified = remaining(betas[1], step) ** 0.5 / exp_avg_sq.sqrt().add_(eps) * (factor * plain)
        size = rectified if isinstance(factor, float) else where(factor > 0, rectified, plain)
    param.sub_(exp_avg.mul(size))


def _rectification(step: Any, beta2: float) -> Any:
    """Rectification of the variance of the root; None, or 0 for a row, after too few steps."""
    longest = 2 / (1 - beta2) - 1
    left = remaining(beta2, step)
    length = longest - 2 * step * (1 - left) / left
    if isinstance(step, Tensor):
        length = length.clamp_min(5.0)  # such rows are not rectified
    elif length <= 5.0:
        return None
    factor = ((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)) ** 0.5
    return where(length > 5, factor, 0) if isinstance(step, Tensor) else float(factor)


def _closed_form(n: Numbers, states: int) -> MomentStep | None:
    (beta1, beta2), step = n["betas"], n["step"]
    factor = _rectification(step, beta2) if beta2 else None
    if factor is None:  # plain momentum, without a root
        return None
    return moment_step(n, size=n["lr"] * factor * math.sqrt(1 - beta2**step) / (1 - beta1**step), root=1.0)


class RAdam(MaskedOptimizer, torch.optim.RAdam):
    r"""Implements RAdam, rectified Adam, for dense, sparse and masked gradients.

    .. math::
        p \leftarrow p - \mathrm{lr}\; \frac{m}{1 - \beta_1^t} \cdot
        \begin{cases} r_t \sqrt{1 - \beta_2^t} / (\sqrt{v} + \epsilon) & \rho_t > 5 \\ 1 & \text{else} \end{cases}

    .. math::
        \rho_\infty = \tfrac{2}{1 - \beta_2} - 1, \qquad
        \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t}, \qquad
        r_t = \sqrt{\frac{(\rho_t - 4)(\rho_t - 2)\,\rho_\infty}{(\rho_\infty - 4)(\rho_\infty - 2)\,\rho_t}}

    :math:`m` and :math:`v` are Adam's moments; ``t`` counts the steps of the parameter.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.RAdam([p], lr=0.1)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [5.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.5000, 1.0000])

    Source: Liu et al., "On the variance of the adaptive learning rate and beyond", ICLR 2020; ``torch.optim.RAdam``.
    """

    _rule = Rule(
        radam_rule_,
        states=(State("exp_avg", "first moment"), State("exp_avg_sq", "second moment", statistic=True)),
        closed_form=_closed_form,
    )
    _torch = torch.optim.RAdam
    _late_options = ("decoupled_weight_decay",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
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
