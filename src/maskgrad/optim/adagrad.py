"""Adagrad for dense, sparse and masked gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.kernels.updates import formulas
from maskgrad.optim.lazy.linear import LinearStep
from maskgrad.optim.optimizer import MaskedOptimizer, StateOption, UnspecifiedOption
from maskgrad.optim.rule import NOTHING, Fused, Numbers, Rule, State, signed

__all__ = ["Adagrad"]


def _closed_form(n: Numbers, states: int) -> LinearStep | None:
    # 0 / (0 + eps) is NaN for eps = 0
    return LinearStep(factors=(1.0,)) if n["weight_decay"] == 0 and n["eps"] > 0 else None


def _fused(n: Numbers, row: bool) -> Fused:
    return Fused("rowwise_adagrad" if row else "adagrad", signed(n, "lr", "weight_decay", "eps"))


class Adagrad(MaskedOptimizer, torch.optim.Adagrad):
    r"""Implements Adagrad for dense, sparse and masked gradients.

    .. math::
        g \leftarrow g + \lambda p, \qquad s \leftarrow s + g^2, \qquad
        p \leftarrow p - \frac{\mathrm{lr}}{1 + (t - 1)\,\mathrm{lr\_decay}} \cdot \frac{g}{\sqrt{s} + \epsilon}

    Args:
        lr_decay: learning rate decay.
        initial_accumulator_value: initial value of the sum of squares of gradients.

    State:
        With ``state="row"`` the shape of ``"sum"`` is (rows, 1, ..., 1), or the parameter's if that has at most one
        dimension.

    Example:
        >>> e = torch.nn.Embedding(3, 1, sparse=True)
        >>> optimizer = mg.optim.Adagrad(e.parameters(), lr=1.0)
        >>> i = torch.tensor([1])
        >>> (e(i) + e(i) * 2).sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[e.weight]["sum"].tolist()
        [[0.0], [9.0], [0.0]]

    Source: Duchi, Hazan and Singer, "Adaptive subgradient methods", JMLR 12 (2011); ``torch.optim.Adagrad``.
    """

    _rule = Rule(
        formulas.adagrad_,
        states=(
            State("sum", "accumulated squares", True, "initial_accumulator_value", argument="state_sum"),
        ),
        prepare=lambda n, step, _: ({"lr": n["lr"] / (1 + (step - 1) * n["lr_decay"])}, NOTHING),
        fused=_fused,
        closed_form=_closed_form,
    )
    _torch = torch.optim.Adagrad

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        super().__init__(params, locals())
        for group in self.param_groups:
            for param in group["params"]:
                self._states(param, self._read_group(group))

    def _init_group(self, group: dict[str, Any], *lists: Any) -> Any:
        """PyTorch's method, extended to added groups and cleared states."""
        for param in group["params"] if "grads" not in group else ():
            self._states(param, self._read_group(group))
        return super()._init_group(group, *lists)
