"""The rule of LAMB."""

from __future__ import annotations

from torch import Tensor, where

from maskgrad.optim.specified import EVERY, Specified

__all__ = ["lamb_"]


def lamb_(
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
    bias_correction: bool,
    norm_bounds: tuple[float, float] | None,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    r"""One LAMB step: Adam's direction, as long as the parameter is; both norms over specified entries.

    .. math:: u = \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon} + \lambda p, \qquad
              p \leftarrow p - \mathrm{lr}\; \frac{\phi(\lVert p \rVert)}{\lVert u \rVert}\; u

    :math:`\phi` clips to ``norm_bounds``. A ratio in which one of the norms is 0 counts as 1.

    Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020,
    algorithm 2.
    """
    if maximize:
        grad = grad.neg()
    exp_avg.lerp_(grad, 1 - beta1)
    specified.add_square_(exp_avg_sq.mul_(beta2), grad, 1 - beta2)
    first, second = (1 - beta1**step, 1 - beta2**step) if bias_correction else (1.0, 1.0)
    direction = exp_avg.div(first).div_(exp_avg_sq.sqrt().div_(second**0.5).add_(eps))
    if weight_decay != 0:
        direction.add_(param, alpha=weight_decay)
    length, reach = specified.norm(param), specified.norm(direction)
    target = length if norm_bounds is None else length.clamp(*norm_bounds)
    usable = (length > 0) & (reach > 0)
    ratio = where(usable, target / where(usable, reach, 1), 1)
    param.sub_(direction.mul_(ratio * lr))
