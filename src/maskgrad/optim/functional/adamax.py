"""Adamax's update as a function."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.adamax import Adamax
from maskgrad.optim.functional.stepping import step_

__all__ = ["adamax_"]


@torch.no_grad()
def adamax_(
    param: Tensor,
    grad: Tensor | MaskedTensor,
    exp_avg: Tensor,
    exp_inf: Tensor,
    *,
    step: float | Tensor,
    lr: float | Tensor = 2e-3,
    betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0,
    maximize: bool = False,
) -> Tensor:
    r"""One Adamax step, in place, on the entries that the gradient specifies.

    The formula is that of :class:`maskgrad.optim.Adamax`.

    Args:
        param: strided tensor, floating-point or complex, any shape; updated in place.
        grad: MaskedTensor, or strided, COO, CSR, CSC, BSR or BSC tensor of the same shape; duplicates are
            merged first, in float32 for halves. A stored zero is an entry.
        exp_avg: first moment; shape of ``param``; updated in place.
        exp_inf: largest gradient, decaying; shape of ``param``, or (rows, 1, ..., 1) for one per row; in place.
        step: number of this step, counted from 1.
        lr: learning rate.
        betas: decay of the mean and of the largest gradient.
        eps: added to the size of the gradient.
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

    Dense equivalent: ``torch.optim.adamax.adamax``.

    Example:
        >>> grad = mg.masked(torch.tensor([1., float("nan")]), torch.tensor([True, False]))
        >>> mg.optim.functional.adamax_(torch.ones(2), grad, torch.zeros(2), torch.zeros(2), step=1, lr=0.1)
        tensor([0.9000, 1.0000])

    Source: Kingma and Ba, "Adam", ICLR 2015, section 7.1.
    """
    return step_(
        Adamax,
        {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
        },
        param,
        grad,
        {"exp_avg": exp_avg, "exp_inf": exp_inf},
        step=step,
    )
