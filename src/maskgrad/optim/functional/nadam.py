"""NAdam's update as a function."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.functional.stepping import step_
from maskgrad.optim.nadam import NAdam

__all__ = ["nadam_"]


@torch.no_grad()
def nadam_(
    param: Tensor,
    grad: Tensor | MaskedTensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    mu_product: Tensor,
    *,
    step: float | Tensor,
    lr: float | Tensor = 2e-3,
    betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0,
    momentum_decay: float = 4e-3,
    decoupled_weight_decay: bool = False,
    maximize: bool = False,
) -> Tensor:
    r"""One NAdam step, in place, on the entries that the gradient specifies.

    The formula is that of :class:`maskgrad.optim.NAdam`.

    Args:
        param: strided tensor, floating-point or complex, any shape; updated in place.
        grad: MaskedTensor, or strided, COO, CSR, CSC, BSR or BSC tensor of the same shape; duplicates are
            merged first, in float32 for halves. A stored zero is an entry.
        exp_avg: first moment; shape of ``param``; updated in place.
        exp_avg_sq: second moment; shape of ``param``, or (rows, 1, ..., 1) for one per row; in place.
        mu_product: product of the momenta so far, starting with 1; one number, updated in place.
        step: number of this step, counted from 1.
        lr: learning rate.
        betas: decay of the two moments.
        eps: added to the root.
        weight_decay: L2 penalty on specified entries.
        momentum_decay: how fast the momentum reaches the first beta.
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

    Dense equivalent: ``torch.optim.nadam.nadam``.

    Example:
        >>> m, v, product = torch.zeros(2), torch.zeros(2), torch.ones(())
        >>> grad = mg.masked(torch.tensor([1., float("nan")]), torch.tensor([True, False]))
        >>> mg.optim.functional.nadam_(torch.ones(2), grad, m, v, product, step=1, lr=0.1)
        tensor([0.8944, 1.0000])

    Source: Dozat, "Incorporating Nesterov momentum into Adam", ICLR workshop 2016.
    """
    return step_(
        NAdam,
        {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
        },
        param,
        grad,
        {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "mu_product": mu_product},
        step=step,
    )
