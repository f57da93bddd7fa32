"""The rule of RAdam."""

from __future__ import annotations

from torch import Tensor

from maskgrad.optim.specified import EVERY, Specified

__all__ = ["radam_"]


def radam_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: float,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    r"""One RAdam step: Adam's, rectified, once enough squares have been seen, and plain momentum until then.

    .. math:: \rho_\infty = \tfrac{2}{1 - \beta_2} - 1, \qquad
              \rho_t = \rho_\infty - \frac{2 t \beta_2^t}{1 - \beta_2^t}, \qquad
              r_t = \sqrt{\frac{(\rho_t - 4)(\rho_t - 2)\,\rho_\infty}{(\rho_\infty - 4)(\rho_\infty - 2)\,\rho_t}}

    .. math:: p \leftarrow p - \mathrm{lr}\; \frac{m}{1 - \beta_1^t} \cdot
              \begin{cases} r_t \sqrt{1 - \beta_2^t} / (\sqrt{v} + \epsilon) & \rho_t > 5 \\ 1 & \text{else} \end{cases}

    Source: Liu et al., "On the variance of the adaptive learning rate and beyond", ICLR 2020.
    """
    if maximize:
        grad = grad.neg()
    if weight_decay != 0:
        if decoupled:
            param.mul_(1 - lr * weight_decay)
        else:
            grad = grad.add(param, alpha=weight_decay)
    exp_avg.lerp_(grad, 1 - beta1)
    specified.add_square_(exp_avg_sq.mul_(beta2), grad, 1 - beta2)
    correction = 1 - beta2**step
    change = exp_avg.div(1 - beta1**step).mul_(lr)
    length = 2 / (1 - beta2) - 1
    length_now = length - 2 * step * (beta2**step) / correction
    if length_now > 5.0:
        rectification = (
            (length_now - 4) * (length_now - 2) * length / ((length - 4) * (length - 2) * length_now)
        ) ** 0.5
        change.mul_(correction**0.5 / exp_avg_sq.sqrt().add_(eps)).mul_(rectification)
    param.sub_(change)
