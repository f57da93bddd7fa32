"""Update rules as functions: one step on a plain tensor, whatever the kind of gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.adagrad import AdagradNumbers
from maskgrad.optim.engine import apply_update
from maskgrad.optim.gradients import read_gradient
from maskgrad.optim.hyperparameters import finite, non_negative
from maskgrad.optim.sgd import SGDNumbers

__all__ = ["adagrad_", "sgd_"]


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
            merged before the square, in float32 for halves. A stored zero is an entry.
        state_sum: accumulated squares, shape of ``param``; updated in place.
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
        ValueError: shapes or devices differ, or a number is negative, NaN or infinite.
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
    numbers = AdagradNumbers(
        lr=non_negative("lr", lr),
        lr_decay=non_negative("lr_decay", lr_decay),
        weight_decay=non_negative("weight_decay", weight_decay),
        initial_accumulator_value=0.0,
        eps=non_negative("eps", eps),
        maximize=maximize,
    )
    count = finite("step", step)
    if count < 1:
        raise ValueError(f"step must be at least 1, the number of the first step, got {step}")
    gradient = read_gradient(param, grad, "param")
    _require_like(param, state_sum, "state_sum")
    apply_update(numbers.update(count), param, gradient, [state_sum.detach()])
    return param


@torch.no_grad()
def sgd_(
    param: Tensor,
    grad: Tensor | MaskedTensor,
    momentum_buffer: Tensor | None = None,
    *,
    lr: float | Tensor = 1e-3,
    momentum: float = 0,
    dampening: float = 0,
    weight_decay: float | Tensor = 0,
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
        momentum_buffer: shape of ``param``, updated in place; needed if ``momentum`` is not 0. Start with
            zeros.
        lr: learning rate.
        momentum: factor of the buffer.
        dampening: what is taken off the gradient before it enters the buffer.
        weight_decay: L2 penalty on specified entries.
        nesterov: look ahead; needs momentum and no dampening.
        maximize: ascend instead.
        started: Boolean, shape of ``param``, updated in place: entries that have a buffer; the others start
            theirs with the undampened gradient. None: all have one.

    Returns:
        ``param``.

    Gradient:
        None; nothing is recorded for autograd.

    Raises:
        TypeError: unknown layout or unfit dtype.
        ValueError: shapes or devices differ, a number is negative, NaN or infinite, or momentum has no
            buffer.
        IndexError: an index outside ``param``. Nothing has been written then.

    Dense equivalent: ``torch.optim.sgd.sgd``.

    Example:
        >>> grad = mg.masked(torch.tensor([1., float("nan")]), torch.tensor([True, False]))
        >>> mg.optim.functional.sgd_(torch.ones(2), grad, lr=0.5)
        tensor([0.5000, 1.0000])

    Source: Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
    """
    numbers = SGDNumbers(
        lr=non_negative("lr", lr),
        momentum=non_negative("momentum", momentum),
        dampening=finite("dampening", dampening),
        weight_decay=non_negative("weight_decay", weight_decay),
        nesterov=nesterov,
        maximize=maximize,
    )
    gradient = read_gradient(param, grad, "param")
    if numbers.momentum == 0:
        apply_update(numbers.update(marked=False), param, gradient, [])
        return param
    if momentum_buffer is None:
        raise ValueError(f"momentum={numbers.momentum} needs momentum_buffer, e.g. torch.zeros_like(param)")
    _require_like(param, momentum_buffer, "momentum_buffer")
    states = [momentum_buffer.detach()]
    if started is not None:
        if started.dtype is not torch.bool:
            raise TypeError(f"started must be a Boolean tensor, got {started.dtype}")
        _require_like(torch.view_as_real(param.detach()) if param.is_complex() else param, started, "started")
        states.append(started)
    apply_update(numbers.update(marked=started is not None), param, gradient, states)
    return param


def _require_like(param: Tensor, other: Tensor, name: str) -> None:
    if other.shape != param.shape or other.device != param.device or other.layout is not torch.strided:
        raise ValueError(
            f"{name} must be a strided tensor like param, {tuple(param.shape)} on {param.device}; got {other.layout} "
            f"of shape {tuple(other.shape)} on {other.device}"
        )
