"""Averaged SGD for dense, sparse and masked gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskgrad.kernels.updates.formulas import penalized
from maskgrad.optim.hyperparameters import finite
from maskgrad.optim.lazy.linear import LinearStep
from maskgrad.optim.optimizer import MaskedOptimizer, StateOption, UnspecifiedOption
from maskgrad.optim.rule import Numbers, Rule, State

__all__ = ["ASGD"]


def asgd_rule_(
    param: Tensor,
    grad: Tensor,
    ax: Tensor,
    *,
    lambd: float,
    eta: float,
    mu: float,
    weight_decay: float,
    maximize: bool,
) -> None:
    """One step with learning rate ``eta``, which enters the average ``ax`` with weight ``mu``."""
    grad = penalized(param, grad, weight_decay, maximize)
    param.mul_(1 - lambd * eta)
    param.add_(grad, alpha=-eta)
    if mu == 1:
        ax.copy_(param)
    else:
        ax.add_(param.sub(ax).mul_(mu))


def _closed_form(n: Numbers, states: int) -> LinearStep | None:
    kept = 1 - n["lambd"] * n["eta"] - n["eta"] * n["weight_decay"]
    return LinearStep(((kept, 0.0), (n["mu"] * kept, 1 - n["mu"])), factors=(1.0,), buffer=0)


def _prepare(n: Numbers, step: float, scalars: Mapping[str, Tensor]) -> tuple[Numbers, Mapping[str, Tensor]]:
    """Learning rate and weight of the average of this step; those of the next step are states."""
    later = {
        "eta": n["lr"] / ((1 + n["lambd"] * n["lr"] * step) ** n["alpha"]),
        "mu": 1 / max(1, step - n["t0"]),
    }
    now = {name: float(scalars[name]) for name in later}
    return now, {name: scalars[name].new_tensor(value) for name, value in later.items()}


class ASGD(MaskedOptimizer, torch.optim.ASGD):
    r"""Implements averaged SGD for dense, sparse and masked gradients.

    .. math::
        p \leftarrow (1 - \lambda \eta_t)\, p - \eta_t\, g, \qquad \bar p \leftarrow \bar p + \mu_t\, (p - \bar p)

    .. math::
        \eta_{t+1} = \frac{\mathrm{lr}}{(1 + \lambda\, \mathrm{lr}\, t)^\alpha}, \qquad
        \mu_{t+1} = \frac{1}{\max(1, t - t_0)}

    ``t`` counts the steps of the parameter. The average of an entry without any gradient so far is the entry itself.

    Args:
        lambd: decay term.
        alpha: power for the update of the learning rate.
        t0: step at which averaging starts.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = mg.optim.ASGD([p], lr=0.5)
        >>> p.grad = torch.sparse_coo_tensor([[1]], [1.0], (3,))
        >>> optimizer.step()
        >>> optimizer.state[p]["ax"]
        tensor([1.0000, 0.4999, 1.0000])

    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J. Control Optim. 30
    (1992); ``torch.optim.ASGD``.
    """

    _rule = Rule(
        asgd_rule_,
        states=(State("ax", "the average, a copy of ``param`` at first", initial=None),),
        limits={"alpha": finite, "t0": finite},
        scalars={"eta": "lr", "mu": 1.0},
        on_device=True,
        prepare=_prepare,
        closed_form=_closed_form,
    )
    _torch = torch.optim.ASGD

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
        *,
        unspecified: UnspecifiedOption = "skip",
        state: StateOption = "full",
    ) -> None:
        super().__init__(params, locals())
