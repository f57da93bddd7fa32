"""Rprop for dense, sparse and masked gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.optim import rules
from maskgrad.optim.engine import Update
from maskgrad.optim.hyperparameters import (
    StateOption,
    UnspecifiedOption,
    non_negative,
    pair,
)
from maskgrad.optim.numbers import Numbers, State, shared_numbers
from maskgrad.optim.optimizer import MaskedOptimizer

__all__ = ["Rprop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RpropNumbers(Numbers):
    """Rprop's hyperparameters as plain numbers."""

    lr: float
    eta_minus: float
    eta_plus: float
    step_size_min: float
    step_size_max: float

    def states(self) -> tuple[State, ...]:
        """Last gradient and step size."""
        return (State("prev"), State("step_size", initial=self.lr))

    def update(self, step: float, **scalars: Tensor) -> Update:
        """The update, the same at each step."""
        names = ("eta_minus", "eta_plus", "step_size_min", "step_size_max", "maximize")
        return Update(partial(rules.rprop_, **{name: getattr(self, name) for name in names}))


class Rprop(MaskedOptimizer):
    r"""Rprop, which steps by the sign of the gradient, on what the gradient specifies.

    .. math:: p \leftarrow p - s\; \mathrm{sign}(g)

    Each entry has its step size :math:`s`. It grows by the second of ``etas`` while the gradient keeps its sign; when
    the sign changes it shrinks by the first, and the entry rests for this step. All this for specified entries only:
    parameter and state of the others stay bit for bit. Duplicates are merged before the sign is taken.

    Args:
        params: parameters or groups, as in PyTorch; floating-point or complex, any shape.
        lr: the first step size, a number or a tensor with one element.
        etas: the factors by which a step size shrinks and grows, one below and one above 1.
        step_sizes: the smallest and the largest step size.
        capturable: keep the step count on the parameter's device, as PyTorch does; graphs are not captured.
        foreach: of dense gradients, all parameters with each operation, as in PyTorch; None: the faster way.
        maximize: ascend instead.
        differentiable: must be False.
        unspecified: ``"skip"``: entries without a gradient are left alone; ``"zero"``: their gradient is zero, and
            they get what a dense step gives them when they are next stepped or read.
        state: ``"full"``: two state values for each entry; signs of rows are not to be had.

    State:
        ``"step"``, ``"prev"`` (the last gradient) and ``"step_size"``, as in ``torch.optim.Rprop``; state dicts can be
        exchanged in mid-run, both ways.

    Raises:
        TypeError: a parameter is sparse itself or not floating-point, a number is none.
        ValueError: a number is out of its range, NaN or infinite; an option is not available.

    Dense equivalent: ``torch.optim.Rprop``.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.Rprop([p], lr=0.5)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [0.001], (3,))
        >>> optimizer.step()
        >>> p.detach()
        tensor([1.0000, 0.5000, 1.0000])

    Source: Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP algorithm",
    ICNN 1993; ``torch.optim.Rprop``.
    """

    _torch = torch.optim.Rprop
    _state_names = frozenset({"step", "prev", "step_size"})
    _no_row_state = "Rprop has no second moment: each entry has its own sign and step size"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        defaults = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "capturable": capturable,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "unspecified": unspecified,
            "state": state,
        }
        super().__init__(params, defaults)

    @staticmethod
    def _numbers(group: dict[str, Any]) -> RpropNumbers:
        smaller, larger = pair("etas", group["etas"])
        if not 0 < smaller < 1 < larger:
            raise ValueError(
                f"etas must be a number between 0 and 1 and one above 1, got {(smaller, larger)}"
            )
        least, most = pair("step_sizes", group["step_sizes"])
        if not 0 <= least <= most:
            raise ValueError(
                f"step_sizes must be two numbers of at least 0 that do not descend, got {(least, most)}"
            )
        return RpropNumbers(
            lr=non_negative("lr", group["lr"]),
            eta_minus=smaller,
            eta_plus=larger,
            step_size_min=least,
            step_size_max=most,
            **shared_numbers(group),
        )
