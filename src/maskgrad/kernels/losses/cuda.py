r"""Losses of two tensors, entry by entry: one pass that reads both and the mask, and another for the gradient.

.. math:: L = \sum_i m_i\, \ell(x_i, t_i), \qquad \frac{\partial L}{\partial x_i} = g\, m_i\, \ell'(x_i, t_i)

The formulas are in the reference. A selection stands where a product with :math:`m` is written. Each thread adds in the
type of the values (half precision in float32), and what the threads and the pieces have is added in float64, in an
order that depends on shapes and strides alone.

Values that are not probabilities have the loss NaN, which raises an asynchronous device error, as in PyTorch
on a GPU.

Legend: x input, t target, m mask, g gradient of the result; q, limit, p, r the scalars of a distance.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from maskgrad.kernels import losses as family
from maskgrad.kernels.cuda.compiler import compiled
from maskgrad.kernels.cuda.loops import Accumulator, number_of, power, reduce, write
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.losses import KINDS

_DISTANCE, _LOGITS = tl.constexpr(KINDS.index("distance")), tl.constexpr(KINDS.index("logits"))


def masked_loss(input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]) -> Tensor:
    if not input.numel() or input.dtype != target.dtype:
        return family.masked_loss.reference(input, target, mask, kind, numbers)
    out = torch.empty_like(input, requires_grad=False)
    write(_loss, out, mask, input, target, kind=KINDS.index(kind), numbers=numbers)
    if kind == "probabilities" and _holds_nan(out.sum()):
        return family.masked_loss.reference(input, target, mask, kind, numbers)  # raises the error
    return out


def masked_loss_sum(
    input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> tuple[Tensor, Tensor]:
    if not input.numel() or input.dtype != target.dtype:
        return family.masked_loss_sum.reference(input, target, mask, kind, numbers)
    found, _ = reduce(
        _LOSSES, mask, (input, target), range(input.ndim), (torch.float64, torch.int64), kind=KINDS.index(kind),
        numbers=numbers,
    )  # fmt: skip
    total, count = (x.sum() for x in found)
    if kind == "probabilities" and _holds_nan(total):
        return family.masked_loss_sum.reference(input, target, mask, kind, numbers)
    return total.to(torch.float32 if input.dtype in HALVES else input.dtype), count


def masked_loss_gradient(
    grad: Tensor, input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> Tensor:
    if not input.numel() or input.dtype != target.dtype:
        return family.masked_loss_gradient.reference(grad, input, target, mask, kind, numbers)
    out = torch.empty_like(input, requires_grad=False)
    return write(_gradient, out, mask, input, target, grad, kind=KINDS.index(kind), numbers=numbers)


def _holds_nan(total: Tensor) -> bool:
    """Return whether a sum of losses is NaN; on a GPU this is an asynchronous error instead."""
    if total.is_cuda:
        torch._assert_async(
            ~total.isnan(), "input and target of a binary cross entropy should be between 0 and 1 where specified"
        )  # fmt: skip
        return False
    return bool(total.isnan())


@compiled
def logarithm_1p(x: tl.tensor) -> tl.tensor:
    """log(1 + x) without loss of digits: a factor corrects the rounding of 1 + x (Kahan)."""
    u = 1 + x
    d = u - 1
    return tl.where(d == 0, x, tl.log(u) * (x / tl.where(d == 0, 1, d)))


@compiled
def _loss(x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """The loss of an input and a target."""
    t = x[1]
    x = x[0]
    if KIND == _DISTANCE:
        a = tl.abs(x - t)
        loss = tl.where(a > n[1], n[2] * a - n[3], n[0] * a * a)
    elif KIND == _LOGITS:
        log_sigmoid = tl.where(x < 0, x, 0) - logarithm_1p(power(-tl.abs(x)))
        loss = (1 - t) * x - log_sigmoid
    else:
        yes = tl.log(x)
        no = logarithm_1p(-x)
        yes = tl.where(yes > -100, yes, -100)
        no = tl.where(no > -100, no, -100)
        allowed = (x >= 0) & (x <= 1) & (t >= 0) & (t <= 1)
        loss = tl.where(allowed, (t - 1) * no - t * yes, float("nan"))
    return loss


@compiled
def _step(
    state: tl.tensor, there: tl.tensor, x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr
) -> tl.tensor:
    return state[0] + tl.where(there, _loss(x, at, n, KIND), 0), state[1] + there.to(state[1].dtype)


@compiled
def _gradient(x: tl.tensor, at: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """The gradient by the input from that of the loss."""
    t = x[1]
    g = x[2]
    x = x[0]
    if KIND == _DISTANCE:
        d = x - t
        double = 2 * n[0]
        slope = tl.where(double == 0, 0, double * d)  # infinite distances have the slope 0 there, not NaN
        slope = tl.where(d > n[1], n[2], tl.where(d < -n[1], -n[2], slope))
    elif KIND == _LOGITS:
        e = power(-tl.abs(x))
        slope = tl.where(x < 0, e, 1) / (1 + e) - t
    else:
        least = number_of(1e-12, g.dtype)
        spread = (1 - x) * x
        slope = (x - t) / tl.where(spread < least, least, spread)
    return g * slope


@compiled
def _start(ROWS: tl.constexpr, COLUMNS: tl.constexpr, KIND: tl.constexpr, ACC: tl.constexpr) -> tl.tensor:
    return tl.zeros((ROWS, COLUMNS), ACC), tl.zeros((ROWS, COLUMNS), tl.int32)


@compiled
def _finish(state: tl.tensor, n: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    return tl.sum(state[0].to(tl.float64), axis=1), tl.sum(state[1].to(tl.int64), axis=1)


_LOSSES = Accumulator(_start, _step, _finish)
