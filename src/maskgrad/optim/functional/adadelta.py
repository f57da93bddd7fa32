"""Adadelta's update as a function."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.adadelta import Adadelta
from maskgrad.optim.functional.stepping import step_

__all__ = ["adadelta_"]


@torch.no_grad()
def adadelta_(
    param: Tensor,
    grad: Tensor | MaskedTensor,
    square_avg: Tensor,
    acc_delta: Tensor,
    *,
    lr: float | Tensor = 1.0,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0,
    maximize: bool = False,
) -> Tensor:
    r"""One Adadelta step, in place, on the entries that the gradient specifies.

    The formula is that of :class:`maskgrad.optim.Adadelta`.

    Args:
        param: strided tensor, floating-point or complex, any shape; updated in place.
        grad: MaskedTensor, or strided, COO, CSR, CSC, BSR or BSC tensor of the same shape; duplicates are
            merged first, in float32 for halves. A stored zero is an entry.
        square_avg: mean square of gradients; shape of ``param``, or (rows, 1, ..., 1) for one per row; in place.
        acc_delta: mean square of changes; shape of ``param``, or (rows, 1, ..., 1) for one per row; in place.
        lr: learning rate.
        rho: decay of both means.
        eps: added below both roots.
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

    Dense equivalent: ``torch.optim.adadelta.adadelta``.

    Example:
        >>> grad = mg.masked(torch.tensor([1., float("nan")]), torch.tensor([True, False]))
        >>> mg.optim.functional.adadelta_(torch.ones(2), grad, torch.zeros(2), torch.zeros(2), eps=1.0)
        tensor([0.0465, 1.0000])

    Source: Zeiler, "ADADELTA: an adaptive learning rate method", 2012.
    """
    return step_(
        Adadelta,
        {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
        },
        param,
        grad,
        {"square_avg": square_avg, "acc_delta": acc_delta},
    )
