"""SGD's update as a function."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.functional.stepping import require_like, step_
from maskgrad.optim.sgd import SGD

__all__ = ["sgd_"]


@torch.no_grad()
def sgd_(
    param: Tensor,
    grad: Tensor | MaskedTensor,
    momentum_buffer: Tensor | None = None,
    *,
    lr: float | Tensor = 1e-3,
    momentum: float = 0,
    dampening: float = 0,
    weight_decay: float = 0,
    nesterov: bool = False,
    maximize: bool = False,
    started: Tensor | None = None,
) -> Tensor:
    r"""One SGD step, in place, on the entries that the gradient specifies.

    .. math::
        g \leftarrow g + \lambda p, \qquad b \leftarrow \mu b + (1 - \tau) g, \qquad p \leftarrow p - \mathrm{lr}\; b

    Args:
        param: strided tensor, floating-point or complex, any shape; updated in place.
        grad: MaskedTensor, or strided, COO, CSR, CSC, BSR or BSC tensor of the same shape; duplicates are
            merged first, in float32 for halves. A stored zero is an entry.
        momentum_buffer: shape of ``param``, updated in place; needed if ``momentum`` is not 0. Start with zeros.
        lr: learning rate.
        momentum: factor of the buffer.
        dampening: what is taken off the gradient before it enters the buffer.
        weight_decay: L2 penalty on specified entries.
        nesterov: look ahead; needs momentum and no dampening.
        maximize: ascend instead.
        started: Boolean, shape of ``param`` (of its pairs if it is complex), updated in place: entries that have a
            buffer; the others start theirs with the undampened gradient. None: all have one.

    Returns:
        ``param``.

    Gradient:
        None; nothing is recorded for autograd.

    Raises:
        TypeError: unknown layout or unfit dtype.
        ValueError: shapes or devices differ, or a number is out of its range, NaN or infinite.
        IndexError: an index outside ``param``. Nothing has been written then.

    Dense equivalent: ``torch.optim.sgd.sgd``.

    Example:
        >>> grad = mg.masked(torch.tensor([1., float("nan")]), torch.tensor([True, False]))
        >>> mg.optim.functional.sgd_(torch.ones(2), grad, lr=0.5)
        tensor([0.5000, 1.0000])

    Source: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
    """
    if started is not None:
        if started.dtype is not torch.bool:
            raise TypeError(f"started must be a Boolean tensor, got {started.dtype}")
        require_like(torch.view_as_real(param.detach()) if param.is_complex() else param, started, "started")
    beyond = [] if started is None or momentum == 0 else [started]
    return step_(
        SGD,
        {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        },
        param,
        grad,
        {"momentum_buffer": momentum_buffer},
        beyond=beyond,
    )
