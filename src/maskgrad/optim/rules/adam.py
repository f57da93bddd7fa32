"""The rule of Adam, AdamW and AMSGrad."""

from __future__ import annotations

from torch import Tensor, maximum

from maskgrad.optim.specified import EVERY, Specified

__all__ = ["adam_"]


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
    specified: Specified = EVERY,
) -> None:
    r"""One Adam step, AdamW's if ``decoupled``; with ``max_exp_avg_sq`` AMSGrad's.

    .. math:: m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
              p \leftarrow p - \mathrm{lr}\; \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    Source: Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019;
    Reddi, Kale and Kumar, "On the convergence of Adam and beyond", ICLR 2018.
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
    spread = exp_avg_sq
    if max_exp_avg_sq is not None:
        max_exp_avg_sq.copy_(maximum(max_exp_avg_sq, exp_avg_sq))
        spread = max_exp_avg_sq
    root = spread.sqrt().div_((1 - beta2**step) ** 0.5).add_(eps)
    param.addcdiv_(exp_avg, root, value=-lr / (1 - beta1**step))
