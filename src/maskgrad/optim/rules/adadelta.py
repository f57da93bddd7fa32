"""The rule of Adadelta."""

from __future__ import annotations

from torch import Tensor

from maskgrad.optim.specified import EVERY, Specified

__all__ = ["adadelta_"]


def adadelta_(
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
    r"""One Adadelta step.

    .. math:: v \leftarrow \rho v + (1 - \rho) g^2, \qquad
              \Delta = g \sqrt{u + \epsilon} / \sqrt{v + \epsilon}, \qquad
              u \leftarrow \rho u + (1 - \rho) \Delta^2, \qquad p \leftarrow p - \mathrm{lr}\; \Delta

    Source: Zeiler, "ADADELTA: an adaptive learning rate method", 2012.
    """
    if maximize:
        grad = grad.neg()
    if weight_decay != 0:
        grad = grad.add(param, alpha=weight_decay)
    specified.add_square_(square_avg.mul_(rho), grad, 1 - rho)
    delta = acc_delta.add(eps).sqrt_().div_(square_avg.add(eps).sqrt_()).mul(grad)
    specified.add_square_(acc_delta.mul_(rho), delta, 1 - rho)
    param.add_(delta, alpha=-lr)
