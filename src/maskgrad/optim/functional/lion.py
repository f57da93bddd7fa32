"""Lion's update as a function."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.functional.stepping import step_
from maskgrad.optim.lion import Lion

__all__ = ["lion_"]


@torch.no_grad()
def lion_(
    param: Tensor,
    grad: Tensor | MaskedTensor,
    exp_avg: Tensor,
    *,
    lr: float | Tensor = 1e-4,
    betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
    weight_decay: float = 0,
    maximize: bool = False,
) -> Tensor:
    r"""One Lion step, in place, on the entries that the gradient specifies.

    The formula is that of :class:`maskgrad.optim.Lion`.

    Args:
        param: strided tensor, floating-point or complex, any shape; updated in place.
        grad: MaskedTensor, or strided, COO, CSR, CSC, BSR or BSC tensor of the same shape; duplicates are
            merged first, in float32 for halves. A stored zero is an entry.
        exp_avg: momentum; shape of ``param``; updated in place.
        lr: learning rate.
        betas: weight of the momentum in the step, and its decay.
        weight_decay: decoupled decay of specified entries.
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
        >>> mg.optim.functional.lion_(torch.ones(2), grad, torch.zeros(2), lr=0.1)
        tensor([0.9000, 1.0000])

    Source: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023.
    """
    return step_(
        Lion,
        {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "maximize": maximize,
        },
        param,
        grad,
        {"exp_avg": exp_avg},
    )
