"""The rule of Lion."""

from __future__ import annotations

from torch import Tensor

__all__ = ["lion_"]


def lion_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    r"""One Lion step; the decay is decoupled.

    .. math:: p \leftarrow p - \mathrm{lr} \left(\mathrm{sign}(\beta_1 m + (1 - \beta_1) g) + \lambda p\right), \qquad
              m \leftarrow \beta_2 m + (1 - \beta_2) g

    Source: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023, program 1.
    """
    if maximize:
        grad = grad.neg()
    if weight_decay != 0:
        param.mul_(1 - lr * weight_decay)
    param.add_(exp_avg.mul(beta1).add_(grad, alpha=1 - beta1).sign_(), alpha=-lr)
    exp_avg.mul_(beta2).add_(grad, alpha=1 - beta2)
