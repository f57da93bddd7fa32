"""LAMB's update as a function."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.functional.stepping import step_
from maskgrad.optim.lamb import LAMB

__all__ = ["lamb_"]


@torch.no_grad()
def lamb_(
    param: Tensor,
    grad: Tensor | MaskedTensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: float | Tensor,
    lr: float | Tensor = 1e-3,
    betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    bias_correction: bool = True,
    norm_bounds: tuple[float, float] | None = None,
    maximize: bool = False,
) -> Tensor:
    r"""One LAMB step, in place, on the entries that the gradient specifies, over which its norms are taken.

    The formula is that of :class:`maskgrad.optim.LAMB`.

    Args:
        param: strided tensor, floating-point or complex, any shape; updated in place.
        grad: MaskedTensor, or strided, COO, CSR, CSC, BSR or BSC tensor of the same shape; duplicates are
            merged first, in float32 for halves. A stored zero is an entry.
        exp_avg: first moment; shape of ``param``; updated in place.
        exp_avg_sq: second moment; shape of ``param``, or (rows, 1, ..., 1) for one per row; in place.
        step: number of this step, counted from 1.
        lr: learning rate.
        betas: decay of the two moments.
        eps: added to the root.
        weight_decay: decoupled decay of specified entries.
        bias_correction: divide the moments by :math:`1 - \beta^t`.
        norm_bounds: bounds of the length of a step; None: there are none.
        maximize: ascend instead.

    Returns:
        ``param``.

    Gradient:
        None; nothing is recorded for autograd.

    Raises:
        TypeError: unknown layout or unfit dtype.
        ValueError: shapes or devices differ, or a number is out of its range, NaN or infinite.
        IndexError: an index outside ``param``. Nothing has been written then.

    Dense equivalent: none in PyTorch.

    Example:
        >>> grad = mg.masked(torch.tensor([1., float("nan")]), torch.tensor([True, False]))
        >>> mg.optim.functional.lamb_(torch.ones(2), grad, torch.zeros(2), torch.zeros(2), step=1, lr=0.1)
        tensor([0.9000, 1.0000])

    Source: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020.
    """
    return step_(
        LAMB,
        {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "norm_bounds": norm_bounds,
            "maximize": maximize,
        },
        param,
        grad,
        {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq},
        step=step,
    )
