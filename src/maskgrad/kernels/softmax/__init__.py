r"""Softmax and logsumexp of the specified entries, and logsumexp of segments, in ordinary PyTorch.

.. math:: y_i = \frac{e^{x_i}}{\sum_j m_j e^{x_j}}, \qquad \ell = \log \sum_j m_j e^{x_j}, \qquad
          \bar x_i = y_i \Bigl(\bar y_i - \sum_j m_j y_j \bar y_j\Bigr), \qquad \bar x_i = e^{x_i - \ell}\, \bar\ell

An unspecified entry is replaced by -inf, the logit of probability 0, which kernels of PyTorch treat like an absent
one: exp(-inf) is exactly 0, in the sum and in every derivative. A slice without entries is replaced by zeros, where all
derivatives are finite. In the results, unspecified entries are 0 (the logarithm: -inf), and the logsumexp of an
empty slice is -inf; all gradients are selected by the mask. Segments, which may be empty here, and shapes are those of
:mod:`maskgrad.kernels.segments`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.kernel import FLOATS, HALVES, kernel
from maskgrad.kernels.reductions import kept
from maskgrad.kernels.segments import derive_segments, segment_expand, segment_extremum, segment_sum
from maskgrad.kernels.smallest import any_of
from maskgrad.mode import TRACED, mode

#: Lengths of rows that PyTorch handles well and the loops do not.
SHORT = range(16, 128)


def absent(values: Tensor, mask: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Fill unspecified entries with -inf, and slices without entries with zeros, to avoid NaN gradients.

    Selected in both directions, no NaN of such a slice spreads anyway. Eager gradients are kept free of NaN for
    ``torch.autograd.detect_anomaly``; graphs skip this second read of the mask.
    """
    if (mode() in TRACED and values.is_floating_point()) or _records_nothing(values):
        return torch.where(mask, values, -torch.inf)
    present = any_of(mask, dim, keepdim=True)
    return torch.where(mask, values, torch.where(present, -torch.inf, 0.0).to(values.dtype))


def _records_nothing(values: Tensor) -> bool:
    """Return whether floats are computed eagerly, without a gradient."""
    recorded = values.requires_grad and torch.is_grad_enabled()
    return not recorded and values.is_floating_point() and mode() == "eager"


@kernel(
    "(Tensor values, Tensor mask, int dim, bool logarithm) -> Tensor",
    FLOATS,
    fuses=True,
    in_graphs=32_768,
    check=check_mask,
)
def masked_softmax(values: Tensor, mask: Tensor, dim: int, logarithm: bool = False) -> Tensor:
    """Softmax of the specified entries along ``dim``, or its logarithm; 0, or -inf, at unspecified entries."""
    safe = absent(values, mask, (dim,))
    if logarithm:
        return torch.where(mask, torch.log_softmax(safe, dim), -torch.inf)
    return torch.where(mask, torch.softmax(safe, dim), 0)


@kernel(
    "(Tensor grad, Tensor output, Tensor mask, int dim, bool logarithm) -> Tensor",
    FLOATS,
    fuses=True,
    in_graphs=32_768,
    leading=1,
)
def masked_softmax_backward(grad: Tensor, output: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor:
    """The gradient of the values from that of their (logarithmic) softmax ``output``; exactly 0 where unspecified."""
    wide = torch.float32 if output.dtype in HALVES else output.dtype
    g, y = torch.where(mask, grad.to(wide), 0), torch.where(mask, output.to(wide), 0)
    soft = (
        y * (g - (g * y).sum(dim, keepdim=True)) if not logarithm else g - y.exp() * g.sum(dim, keepdim=True)
    )
    return torch.where(mask, soft, 0).to(output.dtype)


@kernel(
    "(Tensor values, Tensor mask, int[] dim, bool keepdim) -> (Tensor, Tensor)",
    FLOATS,
    fuses=True,
    in_graphs=32_768,
    check=check_mask,
)
def masked_logsumexp(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool
) -> tuple[Tensor, Tensor]:
    """``log(sum(exp(x)))`` of the specified entries (-inf if there are none), and whether there are any."""
    safe = absent(values, mask, dim)
    present = any_of(mask, dim, keepdim)
    wide = safe.float() if values.dtype in HALVES else safe
    # torch.logsumexp takes an empty dim as all dimensions.
    result = torch.logsumexp(wide, dim, keepdim=keepdim) if dim else wide
    if result.dtype is values.dtype and _records_nothing(values):  # the sum of nothing is -inf
        return result, present
    return torch.where(present, result, -torch.inf).to(values.dtype), present


@kernel(
    "(Tensor grad, Tensor values, Tensor result, Tensor mask) -> Tensor",
    FLOATS,
    fuses=True,
    in_graphs=32_768,
    leading=1,
)
def masked_logsumexp_backward(grad: Tensor, values: Tensor, result: Tensor, mask: Tensor) -> Tensor:
    """``exp(values - result) * grad`` where ``mask`` holds, else 0; ``result`` and ``grad`` broadcast to the values."""
    wide = torch.float32 if values.dtype in HALVES else values.dtype
    powers = torch.where(mask, values.to(wide) - result.to(wide), 0).exp()
    return torch.where(mask, powers * grad.to(wide), 0).to(values.dtype)


def _save_softmax(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, mask, ctx.dim, ctx.logarithm = inputs
    ctx.save_for_backward(output, mask)


def _softmax_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    output, mask = ctx.saved_tensors
    return masked_softmax_backward(grad, output, mask, ctx.dim, ctx.logarithm), None, None, None


def _save_logsumexp(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, mask, ctx.dim, ctx.keepdim = inputs
    ctx.save_for_backward(values, mask, output[0])
    ctx.mark_non_differentiable(output[1])


def _logsumexp_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    values, mask, result = ctx.saved_tensors
    grad, result = (kept(x, mask.ndim, ctx.dim, ctx.keepdim) for x in (grad, result))
    if values.dtype not in HALVES:
        return masked_logsumexp_backward(grad, values, result, mask), None, None, None
    # Rounding errors of half-precision results would be amplified by their size: recomputed in float32.
    wide = values.to(torch.float32)
    result, _ = masked_logsumexp(wide, mask, tuple(ctx.dim), True)
    return masked_logsumexp_backward(grad, wide, result, mask).to(values.dtype), None, None, None


masked_softmax.derive(_save_softmax, _softmax_backward)
masked_softmax_backward.derive_through_reference()
masked_logsumexp.derive(_save_logsumexp, _logsumexp_backward)
masked_logsumexp_backward.derive_through_reference()


@kernel("(Tensor values, Tensor pointers, Tensor? order) -> Tensor", FLOATS)
def segment_logsumexp(values: Tensor, pointers: Tensor, order: Tensor | None = None) -> Tensor:
    """``torch.logsumexp`` of each segment, (n, *dense) -> (g, *dense), float32 for half precision; -inf if empty."""
    wide = values.float() if values.dtype in HALVES else values
    real = wide.real if wide.is_complex() else wide
    best = segment_extremum.reference(real.detach(), pointers, order, True)
    shift = torch.where(best.isfinite(), best, 0)
    powers = (wide - segment_expand.reference(shift, pointers, order, len(values))).exp()
    return segment_sum.reference(powers, pointers, order).log() + shift


@kernel(
    "(Tensor grad, Tensor values, Tensor result, Tensor pointers, Tensor? order) -> Tensor", FLOATS, leading=1
)
def segment_logsumexp_backward(
    grad: Tensor, values: Tensor, result: Tensor, pointers: Tensor, order: Tensor | None
) -> Tensor:
    """The gradient of the entries from that of their ``result``, (n, *dense)."""
    number, wide = len(values), values.float() if values.dtype in HALVES else values
    powers = (wide - segment_expand.reference(result, pointers, order, number)).exp().conj()
    return (powers * segment_expand.reference(grad, pointers, order, number)).to(values.dtype)


derive_segments(segment_logsumexp, segment_logsumexp_backward)
segment_logsumexp_backward.derive_through_reference()
