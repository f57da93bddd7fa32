"""Adam and AdamW for dense, sparse and masked gradients."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, maximum
from torch.optim.optimizer import ParamsT

from maskgrad.optim.lazy.moments import MomentStep, moment_step
from maskgrad.optim.optimizer import MaskedOptimizer, StateOption, UnspecifiedOption
from maskgrad.optim.rule import Fused, Numbers, Rule, State, decayed, signed
from maskgrad.optim.specified import EVERY, Specified

__all__ = ["Adam", "AdamW", "SparseAdam"]


def adam_rule_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor | None = None,
    *,
    step: float,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    """One Adam step, AdamW's if ``decoupled_weight_decay``; with ``max_exp_avg_sq`` AMSGrad's."""
    beta1, beta2 = betas
    grad = decayed(param, grad, lr, weight_decay, decoupled_weight_decay, maximize)
    specified.update_moments_(grad, exp_avg, exp_avg_sq, betas)
    second = exp_avg_sq
    if max_exp_avg_sq is not None:
        second = max_exp_avg_sq.copy_(maximum(max_exp_avg_sq, exp_avg_sq))
    root = second.sqrt().div_((1 - beta2**step) ** 0.5).add_(eps)
    param.addcdiv_(exp_avg, root, value=-lr / (1 - beta1**step))


def _closed_form(n: Numbers, states: int) -> MomentStep | None:
    (beta1, beta2), step = n["betas"], n["step"]
    return moment_step(
        n, size=n["lr"] / (1 - beta1**step), root=1 / math.sqrt(1 - beta2**step), maximum=states > 2
    )


def _fused(n: Numbers, row: bool) -> Fused | None:
    if row:
        return None
    numbers = signed(n, "step", "lr", "eps", "weight_decay")
    numbers["beta1"], numbers["beta2"] = n["betas"]
    numbers["decoupled"] = n["decoupled_weight_decay"]
    return Fused("adam_rows_", numbers, lambda states: [*states, *[None] * (3 - len(states))])


class Adam(MaskedOptimizer):
    r"""Implements Adam for dense, sparse and masked gradients.

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
        p \leftarrow p - \mathrm{lr}\, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    ``t`` counts the steps of the parameter, as in ``torch.optim.SparseAdam``.

    Args:
        capturable: for dense gradients on an accelerator, as in PyTorch.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.Adam([p], lr=0.1)
        >>> p.grad = torch.sparse_coo_tensor([[0]], torch.ones(1), (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([0.9000, 1.0000, 1.0000])

    Source: Kingma and Ba, "Adam", ICLR 2015; ``torch.optim.Adam``, ``torch.optim.SparseAdam``.
    """

    _rule = Rule(
        adam_rule_,
        states=(
            State("exp_avg", "first moment"),
            State("exp_avg_sq", "second moment", statistic=True),
            State("max_exp_avg_sq", "largest second moment so far", statistic=True, needs="amsgrad"),
        ),
        fused=_fused,
        closed_form=_closed_form,
    )
    _torch: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adam
    _late_options: ClassVar[tuple[str, ...]] = ("weight_decay", "amsgrad", "decoupled_weight_decay")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        super().__init__(params, locals())


class AdamW(Adam):
    """Implements AdamW, Adam with decoupled weight decay: specified entries shrink by ``lr * weight_decay``.

    Args:
        weight_decay: decoupled weight decay, on specified entries.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(2))
        >>> p.grad = torch.sparse_coo_tensor([[0]], torch.zeros(1), (2,))
        >>> mg.optim.AdamW([p], lr=0.1, weight_decay=0.5).step()
        >>> p.detach()
        tensor([0.9500, 1.0000])

    Source: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019; ``torch.optim.AdamW``.
    """

    _torch = torch.optim.AdamW
    # AdamW without a decay is none: a state that lacks it is another optimizer's.
    _late_options = ("amsgrad",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        MaskedOptimizer.__init__(self, params, {**locals(), "decoupled_weight_decay": True})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore; the decay stays decoupled, whatever was loaded."""
        for group in state["param_groups"]:
            group["decoupled_weight_decay"] = True
        super().__setstate__(state)


class SparseAdam(Adam):
    """Implements the lazy version of Adam under the name that it has in PyTorch.

    Dense and masked gradients are accepted as well.

    Dense equivalent: ``torch.optim.SparseAdam`` for COO gradients, to float32 rounding.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(2))
        >>> p.grad = torch.sparse_coo_tensor([[0]], torch.ones(1), (2,))
        >>> mg.optim.SparseAdam([p], lr=0.1).step()
        >>> p.detach()
        tensor([0.9000, 1.0000])

    Source: ``torch.optim.SparseAdam``.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, maximize=maximize)
