"""Lion for dense, sparse and masked gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.optim import rules
from maskgrad.optim.engine import Update
from maskgrad.optim.hyperparameters import (
    StateOption,
    UnspecifiedOption,
    betas,
    non_negative,
)
from maskgrad.optim.numbers import Numbers, State, shared_numbers
from maskgrad.optim.optimizer import MaskedOptimizer

__all__ = ["Lion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LionNumbers(Numbers):
    """Lion's hyperparameters as plain numbers."""

    lr: float
    beta1: float
    beta2: float
    weight_decay: float

    counts_steps: ClassVar[bool] = False

    def states(self) -> tuple[State, ...]:
        """The momentum."""
        return (State("exp_avg"),)

    def update(self, step: float, **scalars: Tensor) -> Update:
        """The update, the same at each step."""
        names = ("lr", "beta1", "beta2", "weight_decay", "maximize")
        return Update(partial(rules.lion_, **{name: getattr(self, name) for name in names}))


class Lion(MaskedOptimizer):
    r"""Lion, which steps by the sign of a momentum, on what the gradient specifies.

    .. math::
        p \leftarrow p - \mathrm{lr} \left(\mathrm{sign}(\beta_1 m + (1 - \beta_1) g) + \lambda p\right), \qquad
        m \leftarrow \beta_2 m + (1 - \beta_2) g

    for specified entries only: parameter and momentum of the others stay bit for bit. Duplicates are merged before
    the sign is taken. Of a complex number each part has a sign.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: learning rate, a number or a tensor with one element.
        betas: weight of the momentum in the step, and its decay, each at least 0 and less than 1.
        weight_decay: decoupled decay of specified entries.
        foreach: accepted for PyTorch's sake; no effect.
        maximize: ascend instead.
        capturable: accepted for PyTorch's sake; no effect.
        differentiable: must be False.
        unspecified: ``"skip"``: entries without a gradient are left alone; ``"zero"``: their gradient is zero, and
            they get what a dense step gives them when they are next stepped or read.
        state: ``"full"``: one momentum for each entry; momentum of rows is not to be had.

    State:
        ``"exp_avg"``, as in the authors' implementation, which also counts no steps.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is out of its range, NaN or infinite; an option is not available.

    Dense equivalent: none in PyTorch; the authors' program with dense gradients.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.Lion([p], lr=0.1)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [5.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.9000, 1.0000])

    Source: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023.
    """

    _state_names = frozenset({"exp_avg"})
    _no_row_state = "Lion has no second moment, of which one value per row could do"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-4,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "foreach": foreach,
            "maximize": maximize,
            "capturable": capturable,
            "differentiable": differentiable,
            "unspecified": unspecified,
            "state": state,
        }
        super().__init__(params, defaults)

    @staticmethod
    def _numbers(group: dict[str, Any]) -> LionNumbers:
        beta1, beta2 = betas(group["betas"])
        return LionNumbers(
            lr=non_negative("lr", group["lr"]),
            weight_decay=non_negative("weight_decay", group["weight_decay"]),
            beta1=beta1,
            beta2=beta2,
            **shared_numbers(group),
        )
