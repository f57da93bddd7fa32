r"""Losses of two tensors, entry by entry, in ordinary PyTorch: exactly 0 where either is unspecified.

=================  =============================================================================================
``distance``         with :math:`a = |x - t|` and the scalars :math:`(q, \delta, p, r)`:
                     :math:`q a^2` where :math:`a \le \delta`, else :math:`p a - r`
``logits``           :math:`-t \ln \sigma(x) - (1 - t) \ln(1 - \sigma(x))`
``probabilities``    :math:`-t \ln x - (1 - t) \ln(1 - x)`, each logarithm at least -100
=================  =============================================================================================

The first is the squared error (1, ∞, 1, 0), the absolute one (0, 0, 1, 0), Huber's (1/2, δ, δ, δ²/2) and the smooth
absolute one (1/2β, β, 1, β/2). At kinks both one-sided derivatives agree; the absolute error has derivative 0 at 0.

Half precision is computed and added up in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.kernels.filling import filled
from maskgrad.kernels.kernel import FLOATS, HALVES, kernel, like

_SIGNATURE = "(Tensor input, Tensor target, Tensor mask, str kind, float[] numbers)"

KINDS = ("distance", "logits", "probabilities")


@kernel(f"{_SIGNATURE} -> Tensor", FLOATS, fuses=True, in_graphs=65_536)
def masked_loss(input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]) -> Tensor:
    """The loss of each entry where the mask holds, else 0; three tensors of one shape, the first two of one dtype."""
    x, t = _safe(input, mask, kind), _safe(target, mask, kind)
    if kind == "logits":
        loss = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    elif kind == "probabilities":
        loss = F.binary_cross_entropy(x, t, reduction="none")
    else:
        q, limit, p, r = numbers
        a = (x - t).abs()
        loss = torch.where(a > limit, p * a - r, q * a * a)
    return filled(loss, mask, 0).to(input.dtype)


@kernel(f"{_SIGNATURE} -> (Tensor, Tensor)", FLOATS, fuses=True, in_graphs=65_536)
def masked_loss_sum(
    input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The sum of these losses (float32 for half precision), and their number (int64)."""
    loss = masked_loss.reference(_wide(input), _wide(target), mask, kind, numbers)
    return loss.sum(), mask.sum()


@kernel(
    "(Tensor grad, Tensor input, Tensor target, Tensor mask, str kind, float[] numbers) -> Tensor",
    FLOATS,
    fuses=True,
    in_graphs=65_536,
    leading=1,
)
def masked_loss_gradient(
    grad: Tensor, input: Tensor, target: Tensor, mask: Tensor, kind: str, numbers: Sequence[float]
) -> Tensor:
    """``grad``, which broadcasts to ``input``, times the derivative of the loss by ``input``."""
    x, t = _safe(input, mask, kind), _safe(target, mask, kind)
    if kind == "logits":
        slope = torch.sigmoid(x) - t
    elif kind == "probabilities":
        slope = (x - t) / ((1 - x) * x).clamp(min=1e-12)
    else:
        q, limit, p, _ = numbers
        d = x - t
        slope = torch.where(d.abs() > limit, p * d.sign(), 2 * q * d if q else torch.zeros_like(d))
    return filled(filled(_wide(grad).to(x.dtype), mask, 0) * slope, mask, 0).to(input.dtype)


def masked_loss_target_gradient(
    grad: Tensor, input: Tensor, target: Tensor, mask: Tensor, kind: str
) -> Tensor:
    """``grad``, broadcast, times the derivative by ``target`` (for distances minus that by ``input``: not computed)."""
    x = _safe(input, mask, kind)
    slope = -x if kind == "logits" else torch.log1p(-x).clamp(min=-100) - x.log().clamp(min=-100)
    return filled(filled(_wide(grad).to(x.dtype), mask, 0) * slope, mask, 0).to(target.dtype)


def _safe(x: Tensor, mask: Tensor, kind: str) -> Tensor:
    return filled(_wide(x), mask, 0.5 if kind == "probabilities" else 0.0)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALVES else x


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.kind, ctx.numbers = inputs
    ctx.save_for_backward(*tensors)
    if isinstance(output, tuple):
        ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    input, target, mask = ctx.saved_tensors
    by_input = by_target = None
    opposite = ctx.kind == "distance"
    if ctx.needs_input_grad[0] or (opposite and ctx.needs_input_grad[1]):
        by_input = masked_loss_gradient(grad, input, target, mask, ctx.kind, ctx.numbers)
    if ctx.needs_input_grad[1]:
        by_target = (
            -by_input
            if opposite and by_input is not None
            else masked_loss_target_gradient(grad, input, target, mask, ctx.kind)
        )
    return by_input, by_target, None, None, None


masked_loss.derive(_save, _backward)
masked_loss.fake = like(0)
masked_loss_sum.derive(_save, _backward)
masked_loss_gradient.derive_through_reference()
masked_loss_gradient.fake = like(1)
