"""Adam and AdamW for dense, sparse and masked gradients."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.kernels.updates import formulas
from maskgrad.optim.lazy.moments import MomentStep, moment_step
from maskgrad.optim.optimizer import CorrectionOption, MaskedOptimizer, StateOption, UnspecifiedOption
from maskgrad.optim.rule import Fused, Numbers, Rule, State, signed

__all__ = ["Adam", "AdamW"]


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
    return Fused("adam", numbers, lambda states: [*states, *[None] * (3 - len(states))])


class Adam(MaskedOptimizer, torch.optim.Adam):
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
        formulas.adam_,
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
        bias_correction: CorrectionOption = "steps",
    ) -> None:
        super().__init__(params, locals())


class AdamW(Adam, torch.optim.AdamW):
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
    # AdamW always has a decay: a state without it is another optimizer's.
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
        bias_correction: CorrectionOption = "steps",
    ) -> None:
        MaskedOptimizer.__init__(self, params, {**locals(), "decoupled_weight_decay": True})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore; the decay stays decoupled for any loaded state."""
        for group in state["param_groups"]:
            group["decoupled_weight_decay"] = True
        super().__setstate__(state)
