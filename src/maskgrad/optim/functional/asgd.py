"""ASGD's update as a function."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.asgd import ASGD
from maskgrad.optim.functional.stepping import step_

__all__ = ["asgd_"]


@torch.no_grad()
def asgd_(
    param: Tensor,
    grad: Tensor | MaskedTensor,
    ax: Tensor,
    eta: Tensor,
    mu: Tensor,
    *,
    step: float | Tensor,
    lr: float | Tensor = 1e-2,
    lambd: float = 1e-4,
    alpha: float = 0.75,
    t0: float = 1e6,
    weight_decay: float = 0,
    maximize: bool = False,
) -> Tensor:
    r"""One step of averaged SGD, in place, on the entries that the gradient specifies.

    The formula is that of :class:`maskgrad.optim.ASGD`.

    Args:
        param: strided tensor, floating-point or complex, any shape; updated in place.
        grad: MaskedTensor, or strided, COO, CSR, CSC, BSR or BSC tensor of the same shape; duplicates are
            merged first, in float32 for halves. A stored zero is an entry.
        ax: the average, a copy of ``param`` at first; shape of ``param``; updated in place.
        eta: learning rate of this step, ``lr`` at first; one number, updated in place.
        mu: weight of the average at this step, 1 at first; one number, updated in place.
        step: number of this step, counted from 1.
        lr: learning rate.
        lambd: decay term.
        alpha: power with which the learning rate falls.
        t0: the step after which averaging starts.
        weight_decay: L2 penalty on specified entries.
        maximize: ascend instead.

    Returns:
        ``param``.

    Gradient:
        None; nothing is recorded for autograd.

    Raises:
        TypeError: unknown layout or unfit dtype.
        ValueError: shapes or devices differ, or a number is out of its range, NaN or infinite.
        IndexError: an index outside ``param``. Nothing has been written then.

    Dense equivalent: ``torch.optim.asgd.asgd``.

    Example:
        >>> ax, eta, mu = torch.ones(2), torch.tensor(0.1), torch.tensor(1.0)
        >>> grad = mg.masked(torch.tensor([1., float("nan")]), torch.tensor([True, False]))
        >>> mg.optim.functional.asgd_(torch.ones(2), grad, ax, eta, mu, step=1, lr=0.1, lambd=0)
        tensor([0.9000, 1.0000])

    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J. Control Optim. 30
    (1992).
    """
    return step_(
        ASGD,
        {
            "lr": lr,
            "lambd": lambd,
            "alpha": alpha,
            "t0": t0,
            "weight_decay": weight_decay,
            "maximize": maximize,
        },
        param,
        grad,
        {"ax": ax, "eta": eta, "mu": mu},
        step=step,
    )
