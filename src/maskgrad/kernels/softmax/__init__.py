r"""Softmax and logsumexp of the specified entries, and logsumexp of segments, in ordinary PyTorch.

.. math:: y_i = \frac{e^{x_i}}{\sum_j m_j e^{x_j}}, \qquad \ell = \log \sum_j m_j e^{x_j}, \qquad
          \bar x_i = e^{x_i - \ell}\, \bar\ell

An unspecified entry is replaced by -inf, the logit of probability 0: exp(-inf) is exactly 0, in the sum and in every
derivative. Slices that are known to be specified or masked as a whole, as those of padding, need no selection. The
logsumexp of an empty slice is -inf, and its gradient 0. Segments, which may be empty here, and shapes are those of
:mod:`maskgrad.kernels.segments`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.filling import cleared, filled
from maskgrad.kernels.invariant import as_rows, is_invariant
from maskgrad.kernels.kernel import FLOATS, HALVES, apply_of, kernel
from maskgrad.kernels.reductions import kept
from maskgrad.kernels.segments import Rows, segment_expand, segment_extremum, segment_softmax, segment_sum
from maskgrad.kernels.smallest import any_of, in_rows, is_complete
from maskgrad.mode import TRACED, mode


def absent(values: Tensor, mask: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Fill unspecified entries with -inf, and slices without entries with zeros, to avoid NaN gradients.

    Selected in both directions, no NaN of such a slice spreads anyway. Gradients outside of graphs are kept free of NaN
    for ``torch.autograd.detect_anomaly``; graphs skip this second read of the mask.
    """
    safe = filled(values, mask, -torch.inf)
    if mode() in TRACED:
        return safe
    present = any_of(mask, dim, keepdim=True)
    if is_complete(present):
        return safe
    return filled(safe, present.expand(safe.shape), 0)


def masked_softmax(values: Tensor, mask: Tensor, dim: int, logarithm: bool = False) -> Tensor:
    """Softmax of the specified entries along ``dim``, or its logarithm; any value at unspecified entries."""
    if is_invariant() and values.is_floating_point() and values.ndim:
        rows, segments, _ = as_rows(absent(values, mask, (dim,)), (dim,))
        return segment_softmax(rows, segments, logarithm).reshape(values.shape)
    if mode() == "eager" and values.is_floating_point():
        return _softmax(values, mask, dim, logarithm)  # type: ignore[no-any-return]
    if mode() in TRACED and in_rows(mask, dim):
        safe = torch.ops.maskgrad.with_gradient_at(values, mask)
    else:  # integers are left to PyTorch, which refuses them
        safe = absent(values, mask, (dim,)) if values.is_floating_point() else values
    return _FUNCTIONS[logarithm](safe, dim)


_FUNCTIONS = (torch.softmax, torch.log_softmax)
_DERIVATIVES = (torch._softmax_backward_data, torch._log_softmax_backward_data)


class _Softmax(torch.autograd.Function):
    """The formula with one fill each way, and the softmax in the memory of the fill.

    4096 x 4096 values take 31 ms, 79 with 64 MB of new memory. Slices without entries are NaN, which are not passed on.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: Tensor, dim: int, logarithm: bool) -> Tensor:
        whole, function = in_rows(mask, dim), _FUNCTIONS[logarithm]
        safe = values if whole else filled(values, mask, -torch.inf)
        in_place = not whole and safe.is_cpu and safe.is_contiguous()
        output = function(safe, dim, out=safe) if in_place else function(safe, dim)
        ctx.dim, ctx.logarithm = dim, logarithm
        ctx.save_for_backward(output, mask)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        output, mask = ctx.saved_tensors
        if torch.is_grad_enabled():  # the second derivative multiplies the output
            output = filled(output, mask, -torch.inf if ctx.logarithm else 0)
        found: Tensor = _DERIVATIVES[ctx.logarithm](grad, output, ctx.dim, output.dtype)
        return cleared(found, mask), None, None, None


_softmax = apply_of(_Softmax)


@kernel(
    "(Tensor values, Tensor mask, int[] dim, bool keepdim) -> (Tensor, Tensor)",
    FLOATS,
    fuses=True,
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
    if is_invariant() and dim and values.ndim:
        rows, segments, placed = as_rows(wide, dim)
        result = placed(segment_logsumexp(rows, segments), keepdim)
    else:
        result = torch.logsumexp(wide, dim, keepdim=keepdim) if dim else wide
    return torch.where(present, result, -torch.inf).to(values.dtype), present


@kernel("(Tensor grad, Tensor values, Tensor result, Tensor mask) -> Tensor", FLOATS, fuses=True, leading=1)
def masked_logsumexp_backward(grad: Tensor, values: Tensor, result: Tensor, mask: Tensor) -> Tensor:
    """``exp(values - result) * grad`` where ``mask`` holds, else 0; ``result`` and ``grad`` broadcast to the values."""
    wide = torch.float32 if values.dtype in HALVES else values.dtype
    powers = cleared(values.to(wide) - result.to(wide), mask).exp()
    return cleared(powers * grad.to(wide), mask).to(values.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, mask, ctx.dim, ctx.keepdim = inputs
    ctx.save_for_backward(values, mask, output[0])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
    values, mask, result = ctx.saved_tensors
    grad, result = (kept(x, mask.ndim, ctx.dim, ctx.keepdim) for x in (grad, result))
    if values.dtype not in HALVES:
        return masked_logsumexp_backward(grad, values, result, mask), None, None, None
    # Rounding errors of half-precision results would be amplified by their size: recomputed in float32.
    wide = values.to(torch.float32)
    result, _ = masked_logsumexp(wide, mask, tuple(ctx.dim), True)
    return masked_logsumexp_backward(grad, wide, result, mask).to(values.dtype), None, None, None


masked_logsumexp.derive(_save, _backward)
masked_logsumexp_backward.derive_through_reference()


def segment_logsumexp(values: Tensor, rows: Rows) -> Tensor:
    """``torch.logsumexp`` of each segment, (n, *dense) -> (g, *dense), float32 for half precision; -inf if empty."""
    wide = values.float() if values.dtype in HALVES else values
    real = wide.real if wide.is_complex() else wide
    best = segment_extremum(real.detach(), rows, True)
    shift = torch.where(best.isfinite(), best, 0)
    powers = (wide - segment_expand(shift, rows)).exp()
    total = segment_sum(powers, rows)
    present = rows.count_for(shift) > 0
    return torch.where(present, torch.where(present, total, 1).log() + shift, -torch.inf)
