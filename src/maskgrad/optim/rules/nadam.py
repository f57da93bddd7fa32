"""The rule of NAdam."""

from __future__ import annotations

from torch import Tensor

from maskgrad.optim.specified import EVERY, Specified

__all__ = ["nadam_"]


def nadam_(
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
    mu: float,
    mu_next: float,
    mu_product: float,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    r"""One NAdam step; ``mu`` is the momentum of this step, ``mu_next`` of the next, ``mu_product`` of all so far.

    .. math:: m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
              p \leftarrow p - \mathrm{lr} \left(\frac{\mu_{t+1}\, m}{1 - \prod_{i \le t+1} \mu_i} +
              \frac{(1 - \mu_t)\, g}{1 - \prod_{i \le t} \mu_i}\right) \Big/
              \left(\sqrt{v / (1 - \beta_2^t)} + \epsilon\right)

    Source: Dozat, "Incorporating Nesterov momentum into Adam", ICLR workshop 2016.
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
    root = exp_avg_sq.div(1 - beta2**step).sqrt_().add_(eps)
    param.addcdiv_(grad, root, value=-lr * (1.0 - mu) / (1.0 - mu_product))
    param.addcdiv_(exp_avg, root, value=(-lr * mu_next) / (1.0 - mu_product * mu_next))
