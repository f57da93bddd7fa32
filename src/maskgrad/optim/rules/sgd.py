"""The rule of SGD with momentum."""

from __future__ import annotations

from torch import Tensor, where

__all__ = ["sgd_"]


def sgd_(
    param: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor | None = None,
    started: Tensor | None = None,
    *,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    r"""One SGD step.

    .. math:: b \leftarrow \mu b + (1 - \tau) g, \qquad p \leftarrow p - \mathrm{lr}\; b

    An entry's first buffer is ``g``, without dampening. ``started`` (Boolean) tells which entries have a
    buffer; None means all, and a buffer of zeros without dampening needs no telling.

    Source: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
    """
    if maximize:
        grad = grad.neg()
    if weight_decay != 0:
        grad = grad.add(param, alpha=weight_decay)
    if momentum_buffer is not None:
        momentum_buffer.mul_(momentum).add_(grad, alpha=1 - dampening)
        if started is not None:
            momentum_buffer.copy_(where(started, momentum_buffer, grad))
            started.fill_(True)
        grad = grad.add(momentum_buffer, alpha=momentum) if nesterov else momentum_buffer
    param.add_(grad, alpha=-lr)
