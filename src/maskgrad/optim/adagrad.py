"""Adagrad for dense, sparse and masked gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.optim import rules
from maskgrad.optim.engine import Update
from maskgrad.optim.fused import fused_adagrad
from maskgrad.optim.hyperparameters import StateOption, UnspecifiedOption, non_negative
from maskgrad.optim.numbers import Numbers, State, shared_numbers
from maskgrad.optim.optimizer import MaskedOptimizer

__all__ = ["Adagrad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdagradNumbers(Numbers):
    """Adagrad's hyperparameters as plain numbers."""

    lr: float
    lr_decay: float
    weight_decay: float
    initial_accumulator_value: float
    eps: float

    def states(self) -> tuple[State, ...]:
        """The accumulated squares."""
        return (State("sum", statistic=True, initial=self.initial_accumulator_value),)

    def update(self, step: float, **scalars: Tensor) -> Update:
        """The update of step number ``step``, counted from 1."""
        numbers: dict[str, Any] = {
            "lr": self.lr / (1 + (step - 1) * self.lr_decay),
            "weight_decay": self.weight_decay,
            "eps": self.eps,
            "maximize": self.maximize,
        }

        return Update(partial(rules.adagrad_, **numbers), fused_adagrad(numbers, self.row))


class Adagrad(MaskedOptimizer):
    r"""Adagrad whose step costs what its gradient specifies, and which touches nothing else.

    .. math::
        g \leftarrow g + \lambda p, \qquad s \leftarrow s + g^2, \qquad
        p \leftarrow p - \frac{\mathrm{lr}}{1 + (t - 1)\,\mathrm{lr\_decay}} \cdot \frac{g}{\sqrt{s} + \epsilon}

    for specified entries only: square root, ``eps`` and ``weight_decay`` never reach another entry, and
    parameter and state of the others stay bit for bit. Duplicates are merged before the square. Gradients may
    be dense, COO (whole rows or single entries, merged or not) or, through :func:`maskgrad.attach_gradient`,
    CSR, CSC, BSR, BSC or MaskedTensor, and may change from step to step.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: learning rate, a number or a tensor with one element.
        lr_decay: decay of the learning rate with the number of steps.
        weight_decay: L2 penalty on specified entries.
        initial_accumulator_value: where the state starts.
        eps: added to the root.
        foreach: of dense gradients, all parameters with each operation, as in PyTorch; None: the faster way.
        maximize: ascend instead.
        differentiable: must be False.
        fused: of dense gradients, PyTorch's fused step; None: on a CPU. Row gradients always take a fused kernel.
        unspecified: ``"skip"``: entries without a gradient are left alone; ``"zero"``: their gradient is zero, and
            they get what a dense step gives them when they are next stepped or read.
        state: ``"full"``: one state value for each entry; ``"row"``: one for each row of the first dimension,
            to which the mean of squares over the row's specified entries is added.

    State:
        ``"step"`` and ``"sum"``, as in ``torch.optim.Adagrad``; state dicts can be exchanged in mid-run, both
        ways. Halves are computed in float32 and rounded once when stored. With ``state="row"`` the shape of
        ``"sum"`` is (rows, 1, ..., 1), which is the parameter's own where that has one dimension or none.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is negative, NaN or infinite; an option is not available.

    Dense equivalent: ``torch.optim.Adagrad``, to float32 rounding.

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

    _torch = torch.optim.Adagrad
    _state_names = frozenset({"step", "sum"})

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
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
            "unspecified": unspecified,
            "state": state,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            for param in group["params"]:
                self._states(param, self._read_group(group))

    def share_memory(self) -> None:
        """Move the state sums to shared memory, as ``torch.optim.Adagrad.share_memory`` does."""
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["sum"].share_memory_()

    @staticmethod
    def _numbers(group: dict[str, Any]) -> AdagradNumbers:
        return AdagradNumbers(
            lr=non_negative("lr", group["lr"]),
            lr_decay=non_negative("lr_decay", group["lr_decay"]),
            weight_decay=non_negative("weight_decay", group["weight_decay"]),
            initial_accumulator_value=non_negative(
                "initial_accumulator_value", group["initial_accumulator_value"]
            ),
            eps=non_negative("eps", group["eps"]),
            **shared_numbers(group),
        )
