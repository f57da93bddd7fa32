"""Adam's update as a function."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.adam import Adam
from maskgrad.optim.functional.stepping import step_

__all__ = ["adam_"]


@torch.no_grad()
def adam_(
    param: Tensor,
    grad: Tensor | MaskedTensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    max_exp_avg_sq: Tensor | None = None,
    *,
    step: float | Tensor,
    lr: float | Tensor = 1e-3,
    betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0,
    decoupled_weight_decay: bool = False,
    maximize: bool = False,
) -> Tensor:
    r"""One Adam step, in place, on the entries that the gradient specifies; AdamW's if the decay is decoupled.

    The formula is that of :class:`maskgrad.optim.Adam`.

    Args:
        param: strided tensor, floating-point or complex, any shape; updated in place.
        grad: MaskedTensor, or strided, COO, CSR, CSC, BSR or BSC tensor of the same shape; duplicates are
            merged first, in float32 for halves. A stored zero is an entry.
        exp_avg: first moment; shape of ``param``; updated in place.
        exp_avg_sq: second moment; shape of ``param``, or (rows, 1, ..., 1) for one per row; in place.
        max_exp_avg_sq: largest second moment so far, for AMSGrad, like ``exp_avg_sq``; None: Adam.
        step: number of this step, counted from 1.
        lr: learning rate.
        betas: decay of the two moments.
        eps: added to the root.
        weight_decay: L2 penalty on specified entries.
        decoupled_weight_decay: decay the parameter itself, as AdamW does.
        maximize: ascend instead.

    Returns:
        ``param``.

    Gradient:
        None; nothing is recorded for autograd.

    Raises:
        TypeError: unknown layout or unfit dtype.
        ValueError: shapes or devices differ, or a number is out of its range, NaN or infinite.
        IndexError: an index outside ``param``. Nothing has been written then.

    Dense equivalent: ``torch.optim.adam.adam``.

    Example:
        >>> grad = mg.masked(torch.tensor([1., float("nan")]), torch.tensor([True, False]))
        >>> mg.optim.functional.adam_(torch.ones(2), grad, torch.zeros(2), torch.zeros(2), step=1, lr=0.1)
        tensor([0.9000, 1.0000])

    Source: Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.
    """
    return step_(
        Adam,
        {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": max_exp_avg_sq is not None,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        },
        param,
        grad,
        {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "max_exp_avg_sq": max_exp_avg_sq},
        step=step,
    )
