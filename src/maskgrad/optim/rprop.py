"""Rprop for dense, sparse and masked gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, where
from torch.optim.optimizer import ParamsT

from maskgrad.optim.hyperparameters import (
    StateOption,
    UnspecifiedOption,
    non_negative,
    pair,
)
from maskgrad.optim.optimizer import MaskedOptimizer
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
    """One Rprop step: by an entry's own step size, whatever the size of its gradient."""
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


def _etas(name: str, value: Any) -> tuple[float, float]:
    smaller, larger = pair(name, value)
    if not 0 < smaller < 1 < larger:
        raise ValueError(f"{name} must be a number between 0 and 1 and one above 1, got {(smaller, larger)}")
    return smaller, larger


def _step_sizes(name: str, value: Any) -> tuple[float, float]:
    least, most = pair(name, value)
    if not 0 <= least <= most:
        raise ValueError(f"{name} must be two numbers of at least 0 that do not descend, got {(least, most)}")
    return least, most


RPROP_RULE = Rule(
    rprop_rule_,
    limits={"lr": non_negative, "etas": _etas, "step_sizes": _step_sizes},
    states=(
        State("prev", "last gradient, 0 at first"),
        State("step_size", "step size of each entry, the learning rate at first", initial="lr"),
    ),
    is_idempotent=True,
)


class Rprop(MaskedOptimizer):
    r"""Rprop, which steps by the sign of the gradient, on what the gradient specifies.

    .. math:: p \leftarrow p - s\; \mathrm{sign}(g)

    Each entry has its step size :math:`s`. It grows by the second of ``etas`` while the gradient keeps its sign; when
    the sign changes it shrinks by the first, and the entry rests for this step. All this for specified entries only:
    parameter and state of the others stay bit for bit. Duplicates are merged before the sign is taken.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: the first step size, a number or a tensor with one element.
        etas: the factors by which a step size shrinks and grows, one below and one above 1.
        step_sizes: the smallest and the largest step size.
        capturable: keep the step count on the parameter's device, as PyTorch does; graphs are not captured.
        foreach: of dense gradients, all parameters with each operation, as in PyTorch; None: the faster way.
        maximize: ascend instead.
        differentiable: must be False.
        unspecified: ``"skip"``: entries without a gradient are left alone; ``"zero"``: their gradient is zero, and
            they get what a dense step gives them when they are next stepped or read.
        state: ``"full"``: two state values for each entry; signs of rows are not to be had.

    State:
        ``"step"``, ``"prev"`` (the last gradient) and ``"step_size"``, as in ``torch.optim.Rprop``; state dicts can be
        exchanged in mid-run, both ways.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is out of its range, NaN or infinite; an option is not available.

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

    _rule = RPROP_RULE
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
