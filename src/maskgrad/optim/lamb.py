"""LAMB for dense, sparse and masked gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.optim import rules
from maskgrad.optim.engine import Update
from maskgrad.optim.hyperparameters import (
    StateOption,
    UnspecifiedOption,
    betas,
    non_negative,
    pair,
)
from maskgrad.optim.numbers import Numbers, State, shared_numbers
from maskgrad.optim.optimizer import MaskedOptimizer

__all__ = ["LAMB"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LAMBNumbers(Numbers):
    """LAMB's hyperparameters as plain numbers."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    bias_correction: bool
    norm_bounds: tuple[float, float] | None

    def states(self) -> tuple[State, ...]:
        """Two moments."""
        return (State("exp_avg"), State("exp_avg_sq", statistic=True))

    def update(self, step: float, **scalars: Tensor) -> Update:
        """The update of step number ``step``, counted from 1."""
        names = ("lr", "beta1", "beta2", "eps", "weight_decay", "bias_correction", "norm_bounds", "maximize")
        numbers = {name: getattr(self, name) for name in names}
        return Update(partial(rules.lamb_, step=step, **numbers), whole=True)


class LAMB(MaskedOptimizer):
    r"""LAMB, Adam with layerwise adaptation, whose step costs what its gradient specifies.

    .. math::
        u = \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon} + \lambda p, \qquad
        p \leftarrow p - \mathrm{lr}\; \frac{\phi(\lVert p \rVert)}{\lVert u \rVert}\; u

    with Adam's moments :math:`m` and :math:`v`, for specified entries only: parameter and both moments of the others
    stay bit for bit. The norms are those of each parameter's **specified entries**: a step on a few rows is as long as
    these rows are, whatever the size of the table. Where one of the two norms is 0 their ratio counts as 1.
    :math:`\phi` is the identity, or clips to ``norm_bounds``. Duplicates are merged before the square.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: learning rate, a number or a tensor with one element.
        betas: decay of the two moments, each at least 0 and less than 1.
        eps: added to the root.
        weight_decay: decoupled decay of specified entries, which takes part in the direction :math:`u`.
        bias_correction: divide the moments by :math:`1 - \beta^t`.
        norm_bounds: the least and the greatest length that :math:`\phi` gives; None: no bounds.
        foreach: accepted for PyTorch's sake; no effect.
        maximize: ascend instead.
        capturable: keep the step count on the parameter's device, as PyTorch does; graphs are not captured.
        differentiable: must be False.
        unspecified: ``"skip"``: entries without a gradient are left alone; ``"zero"``: their gradient is zero,
            and a step costs what the whole parameter costs, for its norms are then those of all entries.
        state: ``"full"``: two state values for each entry; ``"row"``: one second moment for each row of the
            first dimension, of the mean of squares over the row's specified entries.

    State:
        ``"step"``, ``"exp_avg"`` and ``"exp_avg_sq"``.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is out of its range, NaN or infinite; an option is not available.

    Dense equivalent: none in PyTorch; the authors' algorithm 2 with dense gradients.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.LAMB([p], lr=0.1)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [5.0], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.9000, 1.0000])

    Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020,
    algorithm 2;
    defaults of its BERT experiments.
    """

    _state_names = frozenset({"step", "exp_avg", "exp_avg_sq"})

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        bias_correction: bool = True,
        norm_bounds: tuple[float, float] | None = None,
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
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "norm_bounds": norm_bounds,
            "foreach": foreach,
            "maximize": maximize,
            "capturable": capturable,
            "differentiable": differentiable,
            "unspecified": unspecified,
            "state": state,
        }
        super().__init__(params, defaults)

    @staticmethod
    def _numbers(group: dict[str, Any]) -> LAMBNumbers:
        beta1, beta2 = betas(group["betas"])
        bounds = None if group["norm_bounds"] is None else pair("norm_bounds", group["norm_bounds"])
        if bounds is not None and not 0 <= bounds[0] <= bounds[1]:
            raise ValueError(
                f"norm_bounds must be two numbers of at least 0 that do not descend, got {bounds}"
            )
        return LAMBNumbers(
            lr=non_negative("lr", group["lr"]),
            eps=non_negative("eps", group["eps"]),
            weight_decay=non_negative("weight_decay", group["weight_decay"]),
            beta1=beta1,
            beta2=beta2,
            bias_correction=bool(group["bias_correction"]),
            norm_bounds=bounds,
            **shared_numbers(group),
        )
