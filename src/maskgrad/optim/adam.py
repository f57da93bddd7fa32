"""Adam and AdamW for dense, sparse and masked gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.optim import rules
from maskgrad.optim.engine import Update
from maskgrad.optim.fused import fused_adam
from maskgrad.optim.hyperparameters import StateOption, UnspecifiedOption, betas, non_negative
from maskgrad.optim.numbers import Numbers, State, shared_numbers
from maskgrad.optim.optimizer import MaskedOptimizer

__all__ = ["Adam", "AdamW", "SparseAdam"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamNumbers(Numbers):
    """Adam's hyperparameters as plain numbers."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    amsgrad: bool
    decoupled: bool

    def states(self) -> tuple[State, ...]:
        """Two moments, and the largest second moment if it is wanted."""
        moments = (State("exp_avg"), State("exp_avg_sq", statistic=True))
        return (*moments, State("max_exp_avg_sq", statistic=True)) if self.amsgrad else moments

    def update(self, step: float, **scalars: Tensor) -> Update:
        """The update of step number ``step``, counted from 1."""
        names = ("lr", "beta1", "beta2", "eps", "weight_decay", "decoupled", "maximize")
        numbers = {"step": step, **{name: getattr(self, name) for name in names}}
        return Update(partial(rules.adam_, **numbers), None if self.row else fused_adam(numbers))


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

    _torch: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adam
    _state_names = frozenset({"step", "exp_avg", "exp_avg_sq"})
    _optional_state_names = frozenset({"max_exp_avg_sq"})
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
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "foreach": foreach,
            "maximize": maximize,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
            "unspecified": unspecified,
            "state": state,
        }
        super().__init__(params, defaults)

    @staticmethod
    def _numbers(group: dict[str, Any]) -> AdamNumbers:
        beta1, beta2 = betas(group["betas"])
        return AdamNumbers(
            lr=non_negative("lr", group["lr"]),
            eps=non_negative("eps", group["eps"]),
            weight_decay=non_negative("weight_decay", group["weight_decay"]),
            beta1=beta1,
            beta2=beta2,
            amsgrad=bool(group["amsgrad"]),
            decoupled=bool(group["decoupled_weight_decay"]),
            **shared_numbers(group),
        )


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
