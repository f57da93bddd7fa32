"""LAMB for dense, sparse and masked gradients."""

from __future__ import annotations

from torch import Tensor, where
from torch.optim.optimizer import ParamsT

from maskgrad.kernels.updates.specified import EVERY, Specified
from maskgrad.optim.hyperparameters import ascending
from maskgrad.optim.optimizer import MaskedOptimizer, StateOption, UnspecifiedOption
from maskgrad.optim.rule import Rule, State

__all__ = ["LAMB"]


def lamb_rule_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: float,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    bias_correction: bool,
    norm_bounds: tuple[float, float] | None,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    """One LAMB step: Adam's direction, scaled to the norm of the parameter; both norms over specified entries."""
    beta1, beta2 = betas
    if maximize:
        grad = grad.neg()
    specified.update_moments_(grad, exp_avg, exp_avg_sq, betas)
    first, second = (1 - beta1**step, 1 - beta2**step) if bias_correction else (1.0, 1.0)
    direction = exp_avg.div(first).div_(exp_avg_sq.sqrt().div_(second**0.5).add_(eps))
    if weight_decay != 0:
        direction.add_(param, alpha=weight_decay)
    length, reach = specified.norm(param), specified.norm(direction)
    target = length if norm_bounds is None else length.clamp(*norm_bounds)
    usable = (length > 0) & (reach > 0)
    ratio = where(usable, target / where(usable, reach, 1), 1)
    param.sub_(direction.mul_(ratio * lr))


class LAMB(MaskedOptimizer):
    r"""Implements LAMB, Adam with layerwise adaptation, for dense, sparse and masked gradients.

    .. math::
        u = \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon} + \lambda p, \qquad
        p \leftarrow p - \mathrm{lr}\; \frac{\phi(\lVert p \rVert)}{\lVert u \rVert}\; u

    :math:`m` and :math:`v` are Adam's moments. The norms are those of the **specified entries** of each parameter: the
    length of a step on a few rows depends on these rows only, for any size of the table. If a norm is 0,
    the ratio is 1. :math:`\phi` is the identity, or clamps to ``norm_bounds``.

    Args:
        weight_decay: decoupled weight decay, which is part of the direction :math:`u`.
        bias_correction: divide the moments by :math:`1 - \beta^t`.
        norm_bounds: the smallest and the largest value of :math:`\phi`; None: no bounds.
        foreach: has no effect; accepted for compatibility.
        differentiable: must be False.
        unspecified: ``"skip"``: entries without a gradient are skipped; ``"zero"``: their gradient is zero, and a
            step costs as much as a dense one, as the norms are then those of all entries.

    Dense equivalent: none in PyTorch; the authors' algorithm 2 with dense gradients.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.LAMB([p], lr=0.1)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [5.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.9000, 1.0000])

    Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020,
    algorithm 2;
    defaults of its BERT experiments.
    """

    _rule = Rule(
        lamb_rule_,
        states=(State("exp_avg", "first moment"), State("exp_avg_sq", "second moment", statistic=True)),
        limits={"norm_bounds": lambda name, value: None if value is None else ascending(name, value)},
        whole=True,
    )

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        bias_correction: bool = True,
        norm_bounds: tuple[float, float] | None = None,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        super().__init__(params, locals())
