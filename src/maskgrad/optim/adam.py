"""Adam and AdamW for dense, sparse and masked gradients."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, maximum
from torch.optim.optimizer import ParamsT

from maskgrad.optim.fused import fused_adam
from maskgrad.optim.hyperparameters import (
    StateOption,
    UnspecifiedOption,
    betas,
    flag,
    non_negative,
)
from maskgrad.optim.lazy.moments import moment_step
from maskgrad.optim.lazy.table import IdleStep
from maskgrad.optim.optimizer import MaskedOptimizer
from maskgrad.optim.rule import Numbers, Rule, State, decayed
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
    """One Adam step, AdamW's if ``decoupled``; with ``max_exp_avg_sq`` AMSGrad's."""
    beta1, beta2 = betas
    grad = decayed(param, grad, lr, weight_decay, decoupled_weight_decay, maximize)
    specified.move_moments_(grad, exp_avg, exp_avg_sq, betas)
    spread = exp_avg_sq
    if max_exp_avg_sq is not None:
        max_exp_avg_sq.copy_(maximum(max_exp_avg_sq, exp_avg_sq))
        spread = max_exp_avg_sq
    root = spread.sqrt().div_((1 - beta2**step) ** 0.5).add_(eps)
    param.addcdiv_(exp_avg, root, value=-lr / (1 - beta1**step))


def _idle(n: Numbers, states: int) -> IdleStep | None:
    (beta1, beta2), step = n["betas"], n["step"]
    return moment_step(
        n, size=n["lr"] / (1 - beta1**step), root=1 / math.sqrt(1 - beta2**step), maximum=states > 2
    )


ADAM_RULE = Rule(
    adam_rule_,
    limits={
        "lr": non_negative,
        "betas": betas,
        "eps": non_negative,
        "weight_decay": non_negative,
        "amsgrad": flag,
        "decoupled_weight_decay": flag,
    },
    states=(
        State("exp_avg", "first moment"),
        State("exp_avg_sq", "second moment", statistic=True),
        State("max_exp_avg_sq", "largest second moment so far, for AMSGrad", statistic=True, needs="amsgrad"),
    ),
    fused=fused_adam,
    idle=_idle,
)


class Adam(MaskedOptimizer):
    r"""Adam whose step costs what its gradient specifies, and which touches nothing else.

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
        p \leftarrow p - \mathrm{lr}\, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    for specified entries only: parameter and both moments of the others stay bit for bit. ``t`` counts the steps of the
    parameter, as in ``torch.optim.SparseAdam``. Duplicates are merged before the square.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: learning rate, a number or a tensor with one element.
        betas: decay of the two moments, each at least 0 and less than 1.
        eps: added to the root.
        weight_decay: L2 penalty on specified entries.
        amsgrad: divide by the largest second moment so far.
        foreach: of dense gradients, all parameters with each operation, as in PyTorch; None: the faster way.
        maximize: ascend instead.
        capturable: of dense gradients on an accelerator, as in PyTorch.
        differentiable: must be False.
        fused: of dense gradients, PyTorch's fused step; None: on a CPU. Row gradients always take a fused kernel.
        decoupled_weight_decay: decay the parameter itself, as AdamW does.
        unspecified: ``"skip"``: entries without a gradient are left alone; ``"zero"``: their gradient is zero, and
            they get what a dense step gives them when they are next stepped or read.
        state: ``"full"``: two state values for each entry; ``"row"``: one second moment for each row of the
            first dimension, of the mean of squares over the row's specified entries.

    State:
        ``"step"``, ``"exp_avg"``, ``"exp_avg_sq"`` and with ``amsgrad`` ``"max_exp_avg_sq"``, as in
        ``torch.optim.Adam``; state dicts can be exchanged in mid-run, both ways.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is out of its range, NaN or infinite; an option is not available.

    Dense equivalent: ``torch.optim.Adam``, to float32 rounding.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.Adam([p], lr=0.1)
        >>> p.grad = torch.sparse_coo_tensor([[0]], torch.ones(1), (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([0.9000, 1.0000, 1.0000])

    Source: Kingma and Ba, "Adam", ICLR 2015; ``torch.optim.Adam``, ``torch.optim.SparseAdam``.
    """

    _rule = ADAM_RULE
    _torch: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adam
    _late_options = MappingProxyType({"weight_decay": 0, "amsgrad": False, "decoupled_weight_decay": False})

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
    """Adam with decoupled weight decay: specified entries shrink by ``lr * weight_decay``, whatever their gradient.

    Args, state and errors are those of :class:`Adam`; ``weight_decay`` is 0.01 unless told otherwise.

    Dense equivalent: ``torch.optim.AdamW``, to float32 rounding.

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
    _late_options = MappingProxyType({"amsgrad": False})

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
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
            unspecified=unspecified,
            state=state,
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore; the decay stays decoupled, whatever was loaded."""
        for group in state["param_groups"]:
            group["decoupled_weight_decay"] = True
        super().__setstate__(state)


class SparseAdam(Adam):
    """Adam's lazy form under the name that it has in PyTorch: entries without a gradient are left alone.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: learning rate, a number or a tensor with one element.
        betas: decay of the two moments, each at least 0 and less than 1.
        eps: added to the root.
        maximize: ascend instead.

    State and errors are those of :class:`Adam`; dense and masked gradients are taken, too.

    Dense equivalent: ``torch.optim.SparseAdam``, to float32 rounding, for COO gradients; state dicts can be exchanged.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(2))
        >>> p.grad = torch.sparse_coo_tensor([[0]], torch.ones(1), (2,))
        >>> mg.optim.SparseAdam([p], lr=0.1).step()
        >>> p.detach()
        tensor([0.9000, 1.0000])

    Source: ``torch.optim.SparseAdam``.
    """

    _late_options = MappingProxyType(
        {
            "weight_decay": 0,
            "amsgrad": False,
            "decoupled_weight_decay": False,
            "foreach": None,
            "differentiable": False,
        }
    )

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, maximize=maximize)
