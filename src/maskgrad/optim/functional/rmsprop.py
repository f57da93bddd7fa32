"""RMSprop's update as a function."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.functional.stepping import step_
from maskgrad.optim.rmsprop import RMSprop

__all__ = ["rmsprop_"]


@torch.no_grad()
def rmsprop_(
    param: Tensor,
    grad: Tensor | MaskedTensor,
    square_avg: Tensor,
    momentum_buffer: Tensor | None = None,
    grad_avg: Tensor | None = None,
    *,
    lr: float | Tensor = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0,
    momentum: float = 0,
    maximize: bool = False,
) -> Tensor:
    r"""One RMSprop step, in place, on the entries that the gradient specifies.

    The formula is that of :class:`maskgrad.optim.RMSprop`.

    Args:
        param: strided tensor, floating-point or complex, any shape; updated in place.
        grad: MaskedTensor, or strided, COO, CSR, CSC, BSR or BSC tensor of the same shape; duplicates are
            merged first, in float32 for halves. A stored zero is an entry.
        square_avg: mean of squares; shape of ``param``, or (rows, 1, ..., 1) for one per row; in place.
        momentum_buffer: shape of ``param``, updated in place; needed if ``momentum`` is not 0.
        grad_avg: mean gradient, shape of ``param``, updated in place: the centered form; None: the plain one.
        lr: learning rate.
        alpha: decay of the mean of squares.
        eps: added to the root.
        weight_decay: L2 penalty on specified entries.
        momentum: factor of the buffer.
        maximize: ascend instead.

    Returns:
        ``param``.

    Gradient:
        None; nothing is recorded for autograd.

    Raises:
        TypeError: unknown layout or unfit dtype.
        ValueError: shapes or devices differ, or a number is out of its range, NaN or infinite.
        IndexError: an index outside ``param``. Nothing has been written then.

    Dense equivalent: ``torch.optim.rmsprop.rmsprop``.

    Example:
        >>> grad = mg.masked(torch.tensor([1., float("nan")]), torch.tensor([True, False]))
        >>> mg.optim.functional.rmsprop_(torch.ones(2), grad, torch.zeros(2), lr=0.1, alpha=0.75)
        tensor([0.8000, 1.0000])

    Source: Hinton, lecture 6e of "Neural networks for machine learning", 2012.
    """
    return step_(
        RMSprop,
        {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": grad_avg is not None,
            "maximize": maximize,
        },
        param,
        grad,
        {"square_avg": square_avg, "momentum_buffer": momentum_buffer, "grad_avg": grad_avg},
    )
