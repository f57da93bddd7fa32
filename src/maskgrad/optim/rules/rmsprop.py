"""The rule of RMSprop."""

from __future__ import annotations

from torch import Tensor

from maskgrad.optim.specified import EVERY, Specified

__all__ = ["rmsprop_"]


def rmsprop_(
    param: Tensor,
    grad: Tensor,
    square_avg: Tensor,
    *others: Tensor,
    lr: float,
    alpha: float,
    eps: float,
    weight_decay: float,
    momentum: float,
    centered: bool,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    r"""One RMSprop step; ``others`` are the mean if ``centered``, then the momentum if ``momentum`` is not 0.

    .. math:: v \leftarrow \alpha v + (1 - \alpha) g^2, \qquad p \leftarrow p - \mathrm{lr}\; g / (\sqrt{v} + \epsilon)

    ``centered`` takes the variance, :math:`v` less the square of the mean gradient; ``momentum`` :math:`\mu` steps by
    :math:`b \leftarrow \mu b + g / (\sqrt{v} + \epsilon)`.

    Source: Hinton, lecture 6e of "Neural networks for machine learning", 2012; Graves, "Generating sequences with
    recurrent neural networks", 2013 (centered).
    """
    if maximize:
        grad = grad.neg()
    if weight_decay != 0:
        grad = grad.add(param, alpha=weight_decay)
    specified.add_square_(square_avg.mul_(alpha), grad, 1 - alpha)
    if centered:
        mean = others[0]
        mean.lerp_(grad, 1 - alpha)
        root = square_avg.addcmul(mean, mean, value=-1).sqrt_().add_(eps)
    else:
        root = square_avg.sqrt().add_(eps)
    if momentum > 0:
        buffer = others[-1]
        buffer.mul_(momentum).addcdiv_(grad, root)
        param.add_(buffer, alpha=-lr)
    else:
        param.addcdiv_(grad, root, value=-lr)
