r"""Sums, means and counts over the specified entries, in ordinary PyTorch.

.. math:: \text{sum} = \sum_i m_i x_i, \qquad \text{mean} = \frac{\sum_i m_i x_i}{\max(1, \sum_i m_i)},
          \qquad \frac{\partial\,\text{mean}}{\partial x_i} = \frac{m_i}{\max(1, \sum_i m_i)}

The product :math:`m_i x_i` is a *selection*: masked values are replaced, never multiplied, because 0 * NaN is
NaN. ``torch.where`` does so in both directions: its backward selects the gradient, too.

``dim`` lists every reduced dimension; the empty tuple reduces nothing (unlike in ``torch.sum``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.invariant import is_invariant, sum_along
from maskgrad.kernels.kernel import FLOATS, HALVES, REDUCIBLE, kernel
from maskgrad.kernels.smallest import any_of, in_rows, repeats, smallest
from maskgrad.mode import can_read

_REDUCTION = (
    "(Tensor values, Tensor mask, int[] dim, bool keepdim, ScalarType? dtype=None) -> (Tensor, Tensor)"
)


def sum_dtype(values: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of ``torch.sum``: integers and Booleans are summed in int64 by default."""
    if dtype is not None:
        return dtype
    return values if values.is_floating_point or values.is_complex else torch.int64


def mean_dtype(values: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of ``torch.mean``, which refuses integers (as do we, with its message)."""
    result = values if dtype is None else dtype
    if not (result.is_floating_point or result.is_complex):
        given = "Input dtype" if dtype is None else "Optional dtype"
        raise RuntimeError(
            f"masked_mean(): could not infer output dtype. {given} must be either a floating point or complex dtype. "
            f"Got: {result}; pass dtype=torch.get_default_dtype() to average integers"
        )
    return result


def storable(values: Tensor, dtype: torch.dtype) -> Tensor:
    """``values``, cast to ``dtype`` first unless a compiled implementation's own widening to it is exact."""
    exact = (
        values.dtype == dtype
        or (values.dtype in HALVES and dtype in (torch.float32, torch.float64))
        or (values.dtype, dtype) == (torch.float32, torch.float64)
        or not (values.is_floating_point() or dtype.is_floating_point)
    )
    return values if exact else values.to(dtype)


@kernel("(Tensor mask, int[] dim, bool keepdim) -> Tensor", REDUCIBLE)
def masked_count(mask: Tensor, dim: tuple[int, ...], keepdim: bool) -> Tensor:
    """The number of specified entries (int64); counted in the mask's smallest shape."""
    few = smallest(mask)
    every = len(dim) == mask.ndim > 0 and not keepdim and can_read(mask)
    # torch.sum of four million Booleans takes 30 ms, this 1.3
    count = torch.count_nonzero(few) if every else _sum(few, dim, keepdim, torch.int64)
    if few is mask or not dim:
        return count
    for d in dim:
        if few.shape[d] != mask.shape[d]:
            count = count * mask.shape[d]
    return count.expand(kept_shape(mask.shape, dim, keepdim))


@kernel(_REDUCTION, REDUCIBLE, fuses=True, in_graphs=65_536, check=check_mask)
def masked_sum(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """The sum of the specified entries (0 if there are none), and whether there is any.

    Equal to ``torch.sum(torch.where(mask, values, 0), dim, keepdim, dtype=dtype)``; dtypes are those of ``torch.sum``.
    """
    there = any_of(mask, dim, keepdim) if dim else mask.clone()
    return plain_sum(values, mask, dim, keepdim, dtype), there


def plain_sum(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, dtype: torch.dtype | None
) -> Tensor:
    """The sum alone."""
    out = sum_dtype(values.dtype, dtype)
    kept = torch.where(smallest(mask), values if values.dtype == out else values.to(out), 0)
    return _sum(kept, dim, keepdim, out)


def some(number: Tensor, mask: Tensor, dims: Sequence[int], keepdim: bool, least: float = 0) -> Tensor:
    """Whether slices have more than ``least`` entries, from their number.

    If all have, over padding, one True stands for them, and what follows is not filled: a pooling classifier gains 3 %.
    """
    if repeats(mask) and can_read(number) and number.numel() and number.amin().item() > least:
        return torch.ones((), dtype=torch.bool).expand(number.shape)
    return present(number, mask, dims, keepdim, least)


def present(number: Tensor, mask: Tensor, dims: Sequence[int], keepdim: bool, least: float = 0) -> Tensor:
    """The same of an operator, whose strides must not depend on numbers; small if the mask repeats."""
    if not repeats(mask):
        return number > least
    few, gone = number, {d % max(mask.ndim, 1) for d in dims}
    left = [d for d in range(mask.ndim) if keepdim or d not in gone]
    for place, dim in enumerate(left):
        if dim not in gone and in_rows(mask, dim):
            few = few.narrow(place, 0, 1)
    return (few > least).expand(number.shape)


@kernel(_REDUCTION, REDUCIBLE, fuses=True, in_graphs=65_536, check=check_mask)
def masked_mean(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """The mean of the specified entries, and their number; where there is none, value 0 and gradient exactly 0."""
    out = mean_dtype(values.dtype, dtype)
    # The sum of halves may overflow where the mean does not, and int64 -> float16 turns a count above 65504 into inf.
    wide = torch.promote_types(out, torch.float64 if is_invariant() else torch.float32)
    total = plain_sum(values if values.dtype is out else values.to(out), mask, dim, keepdim, wide)
    count = masked_count.reference(mask, dim, keepdim)
    mean = total / count.clamp_min(1)
    return mean if wide is out else mean.to(out), count


@kernel(
    "(Tensor grad, Tensor mask, ScalarType dtype) -> Tensor",
    FLOATS,
    fuses=True,
    in_graphs=65_536,
    numbers=lambda *args: args[1].numel(),
)
def masked_expand(grad: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """``grad``, broadcast to the shape of ``mask``, where it holds, else exactly 0: the adjoint of the masked sum.

    The implementation is selected again, as backward passes may run under other transforms than forward ones.
    """
    return torch.where(smallest(mask), grad.to(dtype).expand(mask.shape), 0)


def kept_shape(shape: Sequence[int], dim: tuple[int, ...], keepdim: bool) -> list[int]:
    """Shape of a reduction along ``dim``."""
    reduced = {d % len(shape) for d in dim}
    return [1 if d in reduced else size for d, size in enumerate(shape) if keepdim or d not in reduced]


def _sum(x: Tensor, dim: tuple[int, ...], keepdim: bool, dtype: torch.dtype) -> Tensor:
    if not dim:
        return x.to(dtype).contiguous()
    if is_invariant():
        return sum_along(x.to(dtype), dim, keepdim)
    return x.sum(dim, keepdim) if x.dtype is dtype else x.sum(dim, keepdim, dtype=dtype)


def kept(x: Tensor, ndim: int, dim: list[int] | tuple[int, ...], keepdim: bool) -> Tensor:
    """``x`` with its reduced dimensions restored, of size 1."""
    if not keepdim and ndim:
        for d in sorted(d % ndim for d in dim):
            x = x.unsqueeze(d)
    return x


def _save_reduction(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, mask, ctx.dim, ctx.keepdim, _ = inputs
    ctx.dtype = values.dtype
    ctx.save_for_backward(mask, output[1])
    ctx.mark_non_differentiable(output[1])


def _spread(ctx: Any, grad: Tensor, mask: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient of each entry: that of its slice, without an imaginary part if values have none."""
    grad = grad.real if grad.is_complex() and not ctx.dtype.is_complex else grad
    spread = masked_expand(kept(grad, mask.ndim, ctx.dim, ctx.keepdim), mask, ctx.dtype)
    return spread, None, None, None, None


def _sum_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return _spread(ctx, grad, ctx.saved_tensors[0])


def _mean_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    mask, count = ctx.saved_tensors
    # float16 / int64 would turn the count into float16, and counts above 65504 into inf.
    wide = grad.to(torch.float32) if grad.dtype in HALVES else grad
    return _spread(ctx, wide / count.clamp(min=1), mask)


masked_sum.derive(_save_reduction, _sum_backward)
masked_mean.derive(_save_reduction, _mean_backward)
masked_expand.derive_through_reference()
