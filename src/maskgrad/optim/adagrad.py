"""Adagrad for dense, sparse and masked gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.optim.fused import fused_adagrad
from maskgrad.optim.hyperparameters import (
    StateOption,
    UnspecifiedOption,
    non_negative,
)
from maskgrad.optim.lazy.linear import LinearStep
from maskgrad.optim.lazy.table import IdleStep
from maskgrad.optim.optimizer import MaskedOptimizer
from maskgrad.optim.rule import NOTHING, Numbers, Rule, State, penalized
from maskgrad.optim.specified import EVERY, Specified

__all__ = ["Adagrad"]


def adagrad_rule_(
    param: Tensor,
    grad: Tensor,
    state_sum: Tensor,
    *,
    lr: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    specified: Specified = EVERY,
) -> None:
    """One Adagrad step; ``lr`` is the already decayed one."""
    grad = penalized(param, grad, weight_decay, maximize)
    specified.add_square_(state_sum, grad, 1)
    param.addcdiv_(grad, state_sum.sqrt().add_(eps), value=-lr)


def _idle(n: Numbers, states: int) -> IdleStep | None:
    # 0 / (0 + eps) is NaN for eps = 0
    return LinearStep(factors=(1.0,)) if n["weight_decay"] == 0 and n["eps"] > 0 else None


ADAGRAD_RULE = Rule(
    adagrad_rule_,
    limits={
        "lr": non_negative,
        "lr_decay": non_negative,
        "weight_decay": non_negative,
        "initial_accumulator_value": non_negative,
        "eps": non_negative,
    },
    states=(
        State(
            "sum",
            "accumulated squares",
            statistic=True,
            initial="initial_accumulator_value",
            argument="state_sum",
        ),
    ),
    prepare=lambda n, step, _: ({"lr": n["lr"] / (1 + (step - 1) * n["lr_decay"])}, NOTHING),
    fused=fused_adagrad,
    idle=_idle,
)


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

    _rule = ADAGRAD_RULE
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

    def share_memory(self) -> None:
        """Move the state sums to shared memory, as ``torch.optim.Adagrad.share_memory`` does."""
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["sum"].share_memory_()
