"""Adam and AdamW for dense, sparse and masked gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.optim import rules
from maskgrad.optim.engine import Update, apply_update
from maskgrad.optim.gradients import Gradient
from maskgrad.optim.hyperparameters import check_options, finite, non_negative
from maskgrad.optim.optimizer import MaskedOptimizer, step_count

__all__ = ["Adam", "AdamW"]


@dataclass(frozen=True, slots=True)
class AdamNumbers:
    """Adam's hyperparameters as plain numbers."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    amsgrad: bool
    decoupled: bool
    maximize: bool

    def update(self, step: float) -> Update:
        """The update of step number ``step``, counted from 1."""
        numbers = {
            name: getattr(self, name)
            for name in ("lr", "beta1", "beta2", "eps", "weight_decay", "decoupled", "maximize")
        }
        return Update(partial(rules.adam_, step=step, **numbers))


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
        foreach: accepted for PyTorch's sake; no effect.
        maximize: ascend instead.
        capturable: accepted for PyTorch's sake; no effect.
        differentiable: must be False.
        fused: accepted for PyTorch's sake; no effect.
        decoupled_weight_decay: decay the parameter itself, as AdamW does.
        unspecified: ``"skip"``: entries without a gradient are left alone.
        state: ``"full"``: two state values for each entry.

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
        unspecified: Literal["skip"] = "skip",
        state: Literal["full"] = "full",
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

    def _numbers(self, group: dict[str, Any]) -> AdamNumbers:
        check_options(group)
        betas = [finite(f"betas[{i}]", beta) for i, beta in enumerate(group["betas"])]
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers of at least 0 and less than 1, got {tuple(betas)}")
        return AdamNumbers(
            **{name: non_negative(name, group[name]) for name in ("lr", "eps", "weight_decay")},
            beta1=betas[0],
            beta2=betas[1],
            amsgrad=bool(group["amsgrad"]),
            decoupled=bool(group.get("decoupled_weight_decay", False)),
            maximize=bool(group["maximize"]),
        )

    def _check_state(self, param: Tensor, name: str) -> None:
        for key in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
            self._check_tensor(param, key, name)

    def _update(self, param: Tensor, gradient: Gradient, numbers: AdamNumbers) -> None:
        state = self.state[param]
        keys = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if numbers.amsgrad else ("exp_avg", "exp_avg_sq")
        for key in keys:
            if key not in state:
                state[key] = torch.zeros_like(param, requires_grad=False)
        state["step"] = step_count(float(state.get("step", 0)) + 1)
        update = numbers.update(float(state["step"]))
        apply_update(update, param, gradient, [state[key] for key in keys])


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

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *args: Any,
        weight_decay: float = 1e-2,
        **options: Any,
    ) -> None:
        if len(args) > 2:  # betas, eps, weight_decay, amsgrad
            weight_decay, args = args[2], (*args[:2], *args[3:])
        names = ("betas", "eps", "amsgrad")
        options = dict(zip(names, args, strict=False)) | options
        options["decoupled_weight_decay"] = True
        super().__init__(params, lr, weight_decay=weight_decay, **options)
