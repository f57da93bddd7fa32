"""The update rules, each written once: plain tensors of one shape, in place, no bookkeeping.

Who owns the tensors decides what an update touches: the engine passes a parameter and its state themselves
(dense gradient) or copies of their specified entries (any other gradient). The operations and their order are
those of ``torch.optim``, so that a dense step gives the same bits.
"""

from __future__ import annotations

import math

from torch import Tensor, maximum, where

__all__ = ["adagrad_", "adam_", "sgd_"]


def adagrad_(
    param: Tensor,
    grad: Tensor,
    state_sum: Tensor,
    *,
    lr: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
) -> None:
    r"""One Adagrad step; ``lr`` is the already decayed one.

    .. math:: s \leftarrow s + g^2, \qquad p \leftarrow p - \mathrm{lr}\; g / (\sqrt{s} + \epsilon)

    Source: Duchi, Hazan and Singer, "Adaptive subgradient methods", JMLR 12 (2011).
    """
    if maximize:
        grad = grad.neg()
    if weight_decay != 0:
        grad = grad.add(param, alpha=weight_decay)
    state_sum.addcmul_(grad, grad)
    param.addcdiv_(grad, state_sum.sqrt().add_(eps), value=-lr)


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


def adam_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor | None = None,
    *,
    step: float,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
) -> None:
    r"""One Adam step, AdamW's if ``decoupled``; with ``max_exp_avg_sq`` AMSGrad's.

    .. math:: m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
              p \leftarrow p - \mathrm{lr}\; \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    Source: Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.
    """
    if maximize:
        grad = grad.neg()
    if weight_decay != 0:
        if decoupled:
            param.mul_(1 - lr * weight_decay)
        else:
            grad = grad.add(param, alpha=weight_decay)
    exp_avg.lerp_(grad, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    spread = exp_avg_sq
    if max_exp_avg_sq is not None:
        max_exp_avg_sq.copy_(maximum(max_exp_avg_sq, exp_avg_sq))
        spread = max_exp_avg_sq
    root = spread.sqrt().div_(math.sqrt(1 - beta2**step)).add_(eps)
    param.addcdiv_(exp_avg, root, value=-lr / (1 - beta1**step))
