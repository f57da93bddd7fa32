"""The rule of averaged SGD."""

from __future__ import annotations

from torch import Tensor

__all__ = ["asgd_"]


def asgd_(
    param: Tensor,
    grad: Tensor,
    ax: Tensor,
    *,
    lambd: float,
    eta: float,
    mu: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    r"""One step of averaged SGD with learning rate ``eta``; ``ax`` is the average, to which it adds with weight ``mu``.

    .. math:: p \leftarrow (1 - \lambda \eta)\, p - \eta\, g, \qquad \bar p \leftarrow \bar p + \mu\, (p - \bar p)

    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J. Control Optim. 30
    (1992); Bottou, "Large-scale machine learning with stochastic gradient descent", 2010.
    """
    if maximize:
        grad = grad.neg()
    if weight_decay != 0:
        grad = grad.add(param, alpha=weight_decay)
    param.mul_(1 - lambd * eta)
    param.add_(grad, alpha=-eta)
    if mu == 1:
        ax.copy_(param)
    else:
        ax.add_(param.sub(ax).mul_(mu))
