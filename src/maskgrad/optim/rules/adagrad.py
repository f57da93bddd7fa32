"""The rule of Adagrad."""

from __future__ import annotations

from torch import Tensor

from maskgrad.optim.specified import EVERY, Specified

__all__ = ["adagrad_"]


def adagrad_(
    param: Tensor,
    grad: Tensor,
    state_sum: Tensor,
    *,
    lr: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    r"""One Adagrad step; ``lr`` is the already decayed one.

    .. math:: s \leftarrow s + g^2, \qquad p \leftarrow p - \mathrm{lr}\; g / (\sqrt{s} + \epsilon)

    Source: Duchi, Hazan and Singer, "Adaptive subgradient methods", JMLR 12 (2011).
    """
    if maximize:
        grad = grad.neg()
    if weight_decay != 0:
        grad = grad.add(param, alpha=weight_decay)
    specified.add_square_(state_sum, grad, 1)
    param.addcdiv_(grad, state_sum.sqrt().add_(eps), value=-lr)
