"""Adagrad's update as a function."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.adagrad import Adagrad
from maskgrad.optim.functional.stepping import step_

__all__ = ["adagrad_"]


@torch.no_grad()
def adagrad_(
    param: Tensor,
    grad: Tensor | MaskedTensor,
    state_sum: Tensor,
    *,
    lr: float | Tensor = 1e-2,
    lr_decay: float = 0,
    weight_decay: float = 0,
    eps: float = 1e-10,
    maximize: bool = False,
    step: float | Tensor = 1,
) -> Tensor:
    r"""One Adagrad step, in place, on the entries that the gradient specifies.

    .. math::
        g \leftarrow g + \lambda p, \qquad s \leftarrow s + g^2, \qquad
        p \leftarrow p - \frac{\mathrm{lr}}{1 + (t - 1)\,\mathrm{lr\_decay}} \cdot \frac{g}{\sqrt{s} + \epsilon}

    Args:
        param: strided tensor, floating-point or complex, any shape; updated in place.
        grad: MaskedTensor, or strided, COO, CSR, CSC, BSR or BSC tensor of the same shape; duplicates are
            merged first, in float32 for halves. A stored zero is an entry.
        state_sum: accumulated squares; shape of ``param``, or (rows, 1, ..., 1) for one per row; in place.
        lr: learning rate.
        lr_decay: decay of the learning rate with ``step``.
        weight_decay: L2 penalty on specified entries.
        eps: added to the root.
        maximize: ascend instead.
        step: number of this step, counted from 1; only ``lr_decay`` reads it.

    Returns:
        ``param``.

    Gradient:
        None; nothing is recorded for autograd.

    Raises:
        TypeError: unknown layout or unfit dtype.
        ValueError: shapes or devices differ, or a number is out of its range, NaN or infinite.
        IndexError: an index outside ``param``. Nothing has been written then.

    Dense equivalent: ``torch.optim.adagrad.adagrad``.

    Example:
        >>> param, state_sum = torch.arange(8.).reshape(2, 4), torch.full((2, 4), 0.5)
        >>> at = torch.tensor([[0, 1, 1], [2, 0, 2]])
        >>> grad = torch.sparse_coo_tensor(at, torch.tensor([3., 4., 5.]), (2, 4), check_invariants=True)
        >>> mg.optim.functional.adagrad_(param, grad, state_sum, lr=0.1)
        tensor([[0.0000, 1.0000, 1.9027, 3.0000],
                [3.9015, 5.0000, 5.9010, 7.0000]])

    Source: Duchi, Hazan and Singer, "Adaptive subgradient methods", JMLR 12 (2011).
    """
    return step_(
        Adagrad,
        {
            "lr": lr,
            "lr_decay": lr_decay,
            "weight_decay": weight_decay,
            "initial_accumulator_value": 0,
            "eps": eps,
            "maximize": maximize,
        },
        param,
        grad,
        {"sum": state_sum},
        step=step,
    )
