"""Rprop's update as a function."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.functional.stepping import step_
from maskgrad.optim.rprop import Rprop

__all__ = ["rprop_"]


@torch.no_grad()
def rprop_(
    param: Tensor,
    grad: Tensor | MaskedTensor,
    prev: Tensor,
    step_size: Tensor,
    *,
    etas: tuple[float, float] = (0.5, 1.2),
    step_sizes: tuple[float, float] = (1e-6, 50),
    maximize: bool = False,
) -> Tensor:
    r"""One Rprop step, in place, on the entries that the gradient specifies.

    The formula is that of :class:`maskgrad.optim.Rprop`.

    Args:
        param: strided tensor, floating-point or complex, any shape; updated in place.
        grad: MaskedTensor, or strided, COO, CSR, CSC, BSR or BSC tensor of the same shape; duplicates are
            merged first, in float32 for halves. A stored zero is an entry.
        prev: last gradient, 0 at first; shape of ``param``; updated in place.
        step_size: step size of each entry, the learning rate at first; shape of ``param``; updated in place.
        etas: the factors by which a step size shrinks and grows.
        step_sizes: the smallest and the largest step size.
        maximize: ascend instead.

    Returns:
        ``param``.

    Gradient:
        None; nothing is recorded for autograd.

    Raises:
        TypeError: unknown layout or unfit dtype.
        ValueError: shapes or devices differ, or a number is out of its range, NaN or infinite.
        IndexError: an index outside ``param``. Nothing has been written then.

    Dense equivalent: ``torch.optim.rprop.rprop``.

    Example:
        >>> grad = mg.masked(torch.tensor([1., float("nan")]), torch.tensor([True, False]))
        >>> mg.optim.functional.rprop_(torch.ones(2), grad, torch.zeros(2), torch.full((2,), 0.1))
        tensor([0.9000, 1.0000])

    Source: Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP algorithm",
    ICNN 1993.
    """
    return step_(
        Rprop,
        {
            "lr": 0,
            "etas": etas,
            "step_sizes": step_sizes,
            "maximize": maximize,
        },
        param,
        grad,
        {"prev": prev, "step_size": step_size},
    )
