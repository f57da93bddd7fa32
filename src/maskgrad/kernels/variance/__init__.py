r"""Variance of the specified entries, and mean and variance of segments, in ordinary PyTorch.

.. math:: v = \frac{\sum_{i: m_i} (x_i - \bar x)^2}{\max(0, n - c)}, \qquad
          \frac{\partial v}{\partial x_i} = m_i \frac{2 (x_i - \bar x)}{n - c}

The derivative is explicit, as in PyTorch, and not left to the chain rule: next to an infinite entry the chain
rule turns every gradient into NaN, while the formula gives the finite entries the gradients of PyTorch.

Two passes, so that a large mean costs no digits. Segments, which may be empty here, and shapes are those of
:mod:`maskgrad.kernels.segments`.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.filling import cleared, filled
from maskgrad.kernels.invariant import is_invariant, sum_along
from maskgrad.kernels.kernel import FLOATS, HALVES, kernel
from maskgrad.kernels.reductions import kept, masked_mean
from maskgrad.kernels.segments import Rows, segment_expand, segment_sum, widened
from maskgrad.kernels.smallest import is_complete
from maskgrad.mode import forward_mode_is_active


@kernel(
    "(Tensor values, Tensor mask, int[] dim, bool keepdim, float correction) -> (Tensor, Tensor, Tensor)",
    FLOATS,
    fuses=True,
    in_graphs=32_768,
    check=check_mask,
)
def masked_variance(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, correction: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Variance, mean (without a gradient) and number (int64) of the specified entries; 0 if there are none.

    The statistics of half precision are float32.
    """
    wide = values.double() if is_invariant() else values.float() if values.dtype in HALVES else values
    # A Function costs as much as a small variance, and one with a forward mode could not be compiled.
    if forward_mode_is_active() or not (wide.requires_grad and torch.is_grad_enabled()):
        found = _variance(wide, mask, dim, correction)
    else:
        found = _Variance.apply(wide, mask, dim, correction)  # type: ignore[no-untyped-call]
    variance, mean, count = found
    dtype = torch.promote_types(values.dtype, torch.float32)
    variance, mean = variance.to(dtype), mean.to(dtype)
    if not keepdim and dim:
        variance, mean, count = variance.squeeze(dim), mean.squeeze(dim), count.squeeze(dim)
    return variance, mean, count


@kernel(
    "(Tensor grad, Tensor values, Tensor mask, Tensor mean, Tensor count, int[] dim, float correction)"
    " -> Tensor",
    FLOATS,
    least=None,
    fuses=True,
    leading=1,
)
def masked_variance_backward(
    grad: Tensor,
    values: Tensor,
    mask: Tensor,
    mean: Tensor,
    count: Tensor,
    dim: tuple[int, ...],
    correction: float,
) -> Tensor:
    """The gradient of the values from that of their variance, whose reduced dimensions are kept."""
    wide = values.float() if values.dtype in HALVES else values
    if torch.is_grad_enabled():  # to be differentiated again: the mean depends on the values
        deviation, *_ = _deviation(wide, mask, dim)
    else:
        deviation = wide - mean
    slope = cleared(deviation, mask, grad * 2 / degrees(count, correction, grad.dtype))
    enough = count > max(correction, 0)
    if not is_complete(enough):  # a mask intersected with it is a pass of its own in a graph
        slope = torch.where(enough, slope, 0)  # a single entry that is infinite would give 0 * (inf - inf)
    return slope.to(values.dtype)


def _deviation(values: Tensor, mask: Tensor, dim: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Specified entries less their mean, 0 elsewhere; the mean; and their number (dimensions kept)."""
    if dim:
        mean, count = masked_mean(values, mask, dim, True)
        # Corrected by the differences: the mean of equal entries is then exact, and the variance 0.
        rest, _ = masked_mean(cleared(values - mean, mask), mask, dim, True)
        mean = mean + rest.nan_to_num(0.0, 0.0, 0.0)
    else:
        mean, count = filled(values, mask, 0), mask.to(torch.int64)
    return cleared(values - mean, mask), mean, count


def _variance(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], correction: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute in two passes, which is stable; dimensions are kept."""
    deviation, mean, count = _deviation(values, mask, dim)
    squares = deviation * deviation
    total = sum_along(squares, dim) if dim else squares
    return total / degrees(count, correction, total.dtype), mean.detach(), count


def degrees(count: Tensor, correction: float, dtype: torch.dtype) -> Tensor:
    """Divisor of the squares: 1 for too few entries, whose result the caller masks."""
    if correction >= 0 and float(correction).is_integer():  # in the fewest calls
        return (count - int(correction)).clamp(min=1).to(dtype)
    return torch.where(count > max(correction, 0), count.to(dtype) - correction, 1)


class _Variance(torch.autograd.Function):
    """:func:`_variance` with the derivative above."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        values: Tensor, mask: Tensor, dim: tuple[int, ...], correction: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _variance(values, mask, dim, correction)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        values, mask, ctx.dim, ctx.correction = inputs
        _, mean, count = output
        ctx.mark_non_differentiable(mean, count)
        ctx.save_for_backward(values, mask, mean, count)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None, None]:
        result = masked_variance_backward.reference(grad, *ctx.saved_tensors, ctx.dim, ctx.correction)
        return result, None, None, None


# PyTorch inspects the signature at each call, which costs more than a small variance; set in advance:
_Variance.forward.__signature__ = inspect.signature(_Variance.forward)  # type: ignore[attr-defined]


def _save_variance(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    values, mask, ctx.dim, ctx.keepdim, ctx.correction = inputs
    _, mean, count = output
    ctx.mark_non_differentiable(mean, count)
    ctx.save_for_backward(values, mask, mean, count)


def _variance_backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    values, mask, *statistics = ctx.saved_tensors
    grad, mean, count = (kept(x, mask.ndim, ctx.dim, ctx.keepdim) for x in (grad, *statistics))
    found = masked_variance_backward(grad, values, mask, mean, count, tuple(ctx.dim), ctx.correction)
    return found, None, None, None, None


masked_variance.derive(_save_variance, _variance_backward)
masked_variance_backward.derive_through_reference()


def segment_mean(values: Tensor, rows: Rows) -> Tensor:
    """The mean of each segment, (n, *dense) -> (g, *dense), float32 for half precision; 0 where it is empty."""
    added = segment_sum(values, rows, widened(values.new_empty(0)).dtype)
    mean = added / rows.count_for(added).clamp(min=1)
    return mean.to(torch.promote_types(values.dtype, torch.float32))


def segment_variance(values: Tensor, rows: Rows, correction: float = 1.0) -> Tensor:
    """Variance of each segment, (n, *dense) -> (g, *dense), float32 for half precision; 0 where it is empty."""
    wide = widened(values)
    size = rows.count_for(wide).clamp(min=1)
    mean = segment_sum(wide, rows) / size
    # Corrected by the differences: the mean of equal entries is then exact, and the variance 0.
    rest = segment_sum(wide - segment_expand(mean, rows), rows) / size
    deviation = wide - segment_expand(mean + torch.where(rest.isfinite(), rest, 0), rows)
    squares = (deviation * deviation.conj()).real if wide.is_complex() else deviation * deviation
    number = rows.count_for(squares)
    divisor = torch.where(number > max(correction, 0), number - correction, 1)
    dtype = values.dtype.to_real() if values.is_complex() else values.dtype
    return (segment_sum(squares, rows) / divisor).to(torch.promote_types(dtype, torch.float32))
