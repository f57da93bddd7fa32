"""Rprop for dense, sparse and masked gradients."""

from __future__ import annotations

import torch
from torch import Tensor, where
from torch.optim.optimizer import ParamsT

from maskgrad.optim.hyperparameters import limited, pair
from maskgrad.optim.optimizer import MaskedOptimizer, StateOption, UnspecifiedOption
from maskgrad.optim.rule import Rule, State

__all__ = ["Rprop"]


def rprop_rule_(
    param: Tensor,
    grad: Tensor,
    prev: Tensor,
    step_size: Tensor,
    *,
    etas: tuple[float, float],
    step_sizes: tuple[float, float],
    maximize: bool,
) -> None:
    """One Rprop step: by each entry's step size, independent of the size of its gradient."""
    (eta_minus, eta_plus), (step_size_min, step_size_max) = etas, step_sizes
    if maximize:
        grad = grad.neg()
    agreement = grad.mul(prev).sign_()
    # Nested so that NaN stays NaN.
    factor = where(agreement.gt(0), eta_plus, where(agreement.lt(0), eta_minus, agreement))
    step_size.mul_(where(agreement.eq(0), 1, factor)).clamp_(step_size_min, step_size_max)
    grad = where(agreement.lt(0), 0, grad)
    param.addcmul_(grad.sign(), step_size, value=-1)
    prev.copy_(grad)


_etas = limited("a number between 0 and 1 and one above 1", lambda etas: 0 < etas[0] < 1 < etas[1], read=pair)
_step_sizes = limited(
    "two numbers of at least 0 in ascending order", lambda sizes: 0 <= sizes[0] <= sizes[1], read=pair
)


class Rprop(MaskedOptimizer, torch.optim.Rprop):
    r"""Implements Rprop, which steps by the sign of the gradient, for dense, sparse and masked gradients.

    .. math:: p \leftarrow p - s\; \mathrm{sign}(g)

    Each entry has a step size :math:`s`. While the gradient keeps its sign, it is multiplied by the second of ``etas``.
    When the sign changes, it is multiplied by the first, and the entry is not moved in this step.

    Args:
        lr: the initial step size, a number or a tensor with one element.
        etas: (eta_minus, eta_plus), the factors of decrease and increase, one below and one above 1.
        step_sizes: the smallest and the largest step size.

    Dense equivalent: ``torch.optim.Rprop``.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.Rprop([p], lr=0.5)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [0.001], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.5000, 1.0000])

    Source: Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP algorithm",
    ICNN 1993; ``torch.optim.Rprop``.
    """

    _rule = Rule(
        rprop_rule_,
        states=(
            State("prev", "last gradient, 0 at first"),
            State("step_size", "step size of each entry, the learning rate at first", initial="lr"),
        ),
        limits={"etas": _etas, "step_sizes": _step_sizes},
        is_idempotent=True,
    )
    _torch = torch.optim.Rprop

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        super().__init__(params, locals())
