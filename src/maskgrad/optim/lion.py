"""Lion for dense, sparse and masked gradients."""

from __future__ import annotations

from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.optim.lazy.linear import LinearStep
from maskgrad.optim.optimizer import MaskedOptimizer, StateOption, UnspecifiedOption
from maskgrad.optim.rule import Numbers, Rule, State

__all__ = ["Lion"]


def lion_rule_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    weight_decay: float,
    maximize: bool,
) -> None:
    """One Lion step; the decay is decoupled."""
    beta1, beta2 = betas
    if maximize:
        grad = grad.neg()
    if weight_decay != 0:
        param.mul_(1 - lr * weight_decay)
    param.add_(exp_avg.mul(beta1).add_(grad, alpha=1 - beta1).sign_(), alpha=-lr)
    exp_avg.mul_(beta2).add_(grad, alpha=1 - beta2)


def _closed_form(n: Numbers, states: int) -> LinearStep | None:
    beta1, beta2 = n["betas"]
    if beta1 == 0 or beta2 == 0:  # sign of 0
        return None
    shrink = 1 - n["lr"] * n["weight_decay"]
    return LinearStep(((shrink, -n["lr"]), (0.0, 1.0)), factors=(beta2,), buffer=0, sign=True)


class Lion(MaskedOptimizer):
    r"""Implements Lion, which steps by the sign of a momentum, for dense, sparse and masked gradients.

    .. math::
        p \leftarrow p - \mathrm{lr} \left(\mathrm{sign}(\beta_1 m + (1 - \beta_1) g) + \lambda p\right), \qquad
        m \leftarrow \beta_2 m + (1 - \beta_2) g

    The real and the imaginary part of a complex number have separate signs. Steps are not counted, as in the authors'
    implementation.

    Args:
        betas: weight of the momentum in the step, and its decay rate, each at least 0 and less than 1.
        weight_decay: decoupled weight decay, on specified entries.
        foreach: has no effect; accepted for compatibility.
        differentiable: must be False.
        capturable: has no effect; accepted for compatibility.

    Dense equivalent: none in PyTorch; the authors' implementation with dense gradients.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.Lion([p], lr=0.1)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [5.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.9000, 1.0000])

    Source: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023.
    """

    _rule = Rule(
        lion_rule_, states=(State("exp_avg", "momentum"),), counts_steps=False, closed_form=_closed_form
    )

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        super().__init__(params, locals())
