"""The formulas of the updates in PyTorch, in place, on tensors of one shape: parameter, gradient and states.

A state may have one value per row. Where a state counts the steps of each row, ``step`` is that tensor.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, maximum, where

from maskgrad.kernels.updates.specified import EVERY, Specified

__all__ = ["adagrad_", "adam_", "decayed", "move_", "penalized", "remaining", "rmsprop_", "sgd_"]


def penalized(param: Tensor, grad: Tensor, weight_decay: float, maximize: bool) -> Tensor:
    """Return the gradient of the objective: with its sign, and with that of an L2 penalty on ``param``."""
    if maximize:
        grad = grad.neg()
    return grad.add(param, alpha=weight_decay) if weight_decay != 0 else grad


def decayed(
    param: Tensor, grad: Tensor, lr: float, weight_decay: float, decoupled: bool, maximize: bool
) -> Tensor:
    """:func:`penalized`; or, if the decay is ``decoupled``, shrink ``param`` and omit the penalty."""
    if decoupled and weight_decay != 0:
        param.mul_(1 - lr * weight_decay)
    return penalized(param, grad, 0.0 if decoupled else weight_decay, maximize)


def remaining(beta: float, step: Any) -> Any:
    """The bias correction 1 - beta ** step, of a scalar or of each row's step count."""
    if isinstance(step, Tensor):  # in float64: the power is close to 1
        return (1 - beta ** step.double()).to(step.dtype)
    return 1 - beta**step


def move_(param: Tensor, top: Tensor, bottom: Tensor, size: Any) -> None:
    """Subtract ``size * top / bottom``; ``size`` is a scalar, or one per row."""
    if isinstance(size, Tensor):
        param.sub_(top.div(bottom).mul_(size))
    else:
        param.addcdiv_(top, bottom, value=-size)


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
    """One step; entries that are not ``started`` (None: all are) get ``grad``, without dampening, as their buffer."""
    grad = penalized(param, grad, weight_decay, maximize)
    if momentum_buffer is not None:
        momentum_buffer.mul_(momentum).add_(grad, alpha=1 - dampening)
        if started is not None:
            momentum_buffer.copy_(where(started, momentum_buffer, grad))
            started.fill_(True)
        grad = grad.add(momentum_buffer, alpha=momentum) if nesterov else momentum_buffer
    param.add_(grad, alpha=-lr)


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
    """One Adagrad step; ``lr`` is decayed already."""
    grad = penalized(param, grad, weight_decay, maximize)
    specified.add_square_(state_sum, grad, 1)
    param.addcdiv_(grad, state_sum.sqrt().add_(eps), value=-lr)


def adam_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor | None = None,
    *,
    step: Any,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    """One Adam step, AdamW's if ``decoupled_weight_decay``; with ``max_exp_avg_sq`` AMSGrad's."""
    grad = decayed(param, grad, lr, weight_decay, decoupled_weight_decay, maximize)
    specified.update_moments_(grad, exp_avg, exp_avg_sq, betas)
    second = exp_avg_sq
    if max_exp_avg_sq is not None:
        second = max_exp_avg_sq.copy_(maximum(max_exp_avg_sq, exp_avg_sq))
    root = second.sqrt().div(remaining(betas[1], step) ** 0.5).add_(eps)
    move_(param, exp_avg, root, lr / remaining(betas[0], step))


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
    """One step; ``others`` are the momentum if ``momentum`` is not 0, then the mean if ``centered``."""
    grad = penalized(param, grad, weight_decay, maximize)
    specified.add_square_(square_avg.mul_(alpha), grad, 1 - alpha)
    if centered:
        mean = others[-1]
        mean.lerp_(grad, 1 - alpha)
        root = square_avg.addcmul(mean, mean, value=-1).sqrt_().add_(eps)
    else:
        root = square_avg.sqrt().add_(eps)
    if momentum > 0:
        buffer = others[0]
        buffer.mul_(momentum).addcdiv_(grad, root)
        param.add_(buffer, alpha=-lr)
    else:
        param.addcdiv_(grad, root, value=-lr)
