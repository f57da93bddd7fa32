"""The rule of Adamax."""

from __future__ import annotations

from torch import Tensor, maximum

from maskgrad.optim.specified import EVERY, Specified

__all__ = ["adamax_"]


def adamax_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_inf: Tensor,
    *,
    step: float,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    r"""One Adamax step.

    .. math:: m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad u \leftarrow \max(\beta_2 u, |g| + \epsilon), \qquad
              p \leftarrow p - \frac{\mathrm{lr}}{1 - \beta_1^t} \cdot \frac{m}{u}

    Source: Kingma and Ba, "Adam", ICLR 2015, section 7.1.
    """
    if maximize:
        grad = grad.neg()
    if weight_decay != 0:
        grad = grad.add(param, alpha=weight_decay)
    exp_avg.lerp_(grad, 1 - beta1)
    largest = specified.row_amax(grad.abs().add_(eps), exp_inf)
    exp_inf.copy_(maximum(exp_inf.mul_(beta2), largest))
    param.addcdiv_(exp_avg, exp_inf, value=-lr / (1 - beta1**step))
