r"""The sum of a loss of the difference of two tensors, and its gradient, in ordinary PyTorch.

With :math:`a = |x - t|` and the scalars :math:`(q, \delta, p, r)` the loss of an entry is

.. math:: q a^2 \text{ where } a \le \delta, \quad \text{else } p a - r.

It is the squared error for (1, ∞, 1, 0), the absolute one for (0, 0, 1, 0), Huber's for (1/2, δ, δ, δ²/2) and the
smooth absolute one for (1/2β, β, 1, β/2). At kinks both one-sided derivatives agree; the absolute error has derivative
0 at 0.

Half precision is computed and added up in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.filling import cleared, filled
from maskgrad.kernels.kernel import FLOATS, HALVES, kernel


@kernel("(Tensor input, Tensor target, Tensor mask, float[] numbers) -> (Tensor, Tensor)", FLOATS, fuses=True)
def masked_distance_sum(
    input: Tensor, target: Tensor, mask: Tensor, numbers: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The sum of the losses where the mask holds (float32 for half precision), and their number (int64).

    Three tensors of one shape, the first two of one dtype.
    """
    q, limit, p, r = numbers
    a = filled(_wide(input) - _wide(target), mask, 0).abs()
    if not q:
        return filled(p * a - r, mask, 0).sum(), mask.sum()
    far = a > limit
    near = torch.where(far, 0, a)  # the derivative of a square is infinite at infinity, and 0 * inf is NaN
    return filled(torch.where(far, p * a - r, q * near * near), mask, 0).sum(), mask.sum()


@kernel(
    "(Tensor grad, Tensor input, Tensor target, Tensor mask, float[] numbers) -> Tensor",
    FLOATS,
    least=None,
    fuses=True,
    leading=1,
)
def masked_distance_gradient(
    grad: Tensor, input: Tensor, target: Tensor, mask: Tensor, numbers: Sequence[float]
) -> Tensor:
    """``grad``, which broadcasts to ``input``, times the derivative of the loss by ``input``."""
    q, limit, p, _ = numbers
    d = _wide(input) - _wide(target)
    if torch.is_grad_enabled():  # to be differentiated again
        d = filled(d, mask, 0)
    factor = _wide(grad).to(d.dtype)
    if limit == math.inf:
        slope = d * (factor * (2 * q))
    elif not q:
        slope = factor * (p * d.sign())  # of NaN 0, as in torch
    else:
        slope = factor * torch.where(d.abs() > limit, p * d.sign(), 2 * q * d)
    return cleared(slope, mask).to(input.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALVES else x


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.numbers = inputs
    ctx.save_for_backward(*tensors)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    input, target, mask = ctx.saved_tensors
    by_input = masked_distance_gradient(grad, input, target, mask, ctx.numbers)
    return by_input, -by_input if ctx.needs_input_grad[1] else None, None, None


masked_distance_sum.derive(_save, _backward)
masked_distance_gradient.derive_through_reference()
