r"""Variances and standard deviations of the specified entries.

.. math:: v = \frac{\\sum_{i: m_i} (x_i - \bar x)^2}{\\max(0, n - c)}, \\qquad
          \frac{\\partial v}{\\partial x_i} = \frac{2 (x_i - \bar x)}{n - c} \\quad (m_i)

The derivative is written down, as PyTorch's is, and not left to the chain rule: next to an infinite entry the chain
rule turns every gradient into NaN, while the formula gives the finite entries what PyTorch gives them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad import kernels
from maskgrad.patterns.eager import forward_mode_is_active
from maskgrad.semantics.dimensions import as_dims, drop, mask_of_any
from maskgrad.semantics.entries import Entries, widened
from maskgrad.semantics.facts import Operation, functions_named
from maskgrad.semantics.signatures import named

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["OPERATIONS", "std", "std_mean", "var", "var_mean"]

PATTERN = "specified where at least one entry was"


def _deviation(values: Tensor, mask: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Specified entries less their mean, 0 elsewhere; and how many there are (dimensions kept)."""
    safe = torch.where(mask, values, 0)
    center, count = kernels.masked_mean(safe, mask, dims, True, None)
    return torch.where(mask, safe - center, 0), count


def _variance(values: Tensor, mask: Tensor, dims: tuple[int, ...], correction: float) -> Tensor:
    """The variance in two passes, which is stable; dimensions are kept."""
    deviation, count = _deviation(values, mask, dims)
    squares = deviation * deviation
    total = squares.sum(dims, keepdim=True) if dims else squares
    # What PyTorch gives on what is left stands (0 / 0 for one entry and correction 1); nothing left is not divided.
    return total / torch.where(count > 0, (count - correction).clamp(min=0), 1)


class _Variance(torch.autograd.Function):
    """:func:`_variance` with the derivative above."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, mask: Tensor, dims: tuple[int, ...], correction: float) -> Tensor:
        return _variance(values, mask, dims, correction)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        values, mask, ctx.dims, ctx.correction = inputs
        ctx.save_for_backward(values, mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        values, mask = ctx.saved_tensors
        deviation, count = _deviation(values, mask, ctx.dims)
        factor = 2 / torch.where(count > 0, count - ctx.correction, 1).to(grad.dtype)
        return torch.where(mask, grad * factor * deviation, 0), None, None, None


def _real_variance(values: Tensor, mask: Tensor, dims: tuple[int, ...], correction: float) -> Tensor:
    wide = widened(values)
    if forward_mode_is_active():  # a Function with a forward-mode derivative could not be compiled
        return _variance(wide, mask, dims, correction)
    result: Tensor = _Variance.apply(wide, mask, dims, correction)  # type: ignore[no-untyped-call]
    return result


def var(
    input: Entries,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Entries:
    """Variance of the specified entries; of complex ones the sum of the variances of both parts, as in torch."""
    values, mask = input
    if isinstance(dim, bool):  # torch.var(x, unbiased)
        dim, unbiased = None, dim
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    if not (values.is_floating_point() or values.is_complex()):
        raise RuntimeError(
            f"std and var only support floating point and complex dtypes, found {values.dtype}"
        )
    dims = as_dims(dim, values.ndim)
    if values.is_complex():
        parts = (values.real, values.imag)
        variance = _real_variance(parts[0], mask, dims, correction) + _real_variance(
            parts[1], mask, dims, correction
        )
        dtype = values.dtype.to_real()
    else:
        variance, dtype = _real_variance(values, mask, dims, correction), values.dtype
    present = mask_of_any(mask, dims, True)
    result = Entries(variance.to(dtype), present)
    return result if keepdim else Entries(drop(result.values, dims), drop(present, dims))


def root(variance: Entries) -> Entries:
    """Square root whose gradient at 0 is 0, as in torch.std."""
    values = variance.values
    flat = values == 0
    return Entries(torch.where(flat, 0, torch.where(flat, 1, values).sqrt()), variance.mask)


def std(
    input: Entries,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Entries:
    """Standard deviation of the specified entries."""
    return root(var(input, dim, unbiased, keepdim, correction=correction))


def _mean(input: Entries, dim: Any, keepdim: bool) -> Entries:
    average, count = kernels.masked_mean(*input, as_dims(dim, input.values.ndim), keepdim, None)
    return Entries(average, count > 0)


def var_mean(
    input: Entries,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Entries, Entries]:
    """Variance and mean of the specified entries."""
    variance = var(input, dim, unbiased, keepdim, correction=correction)
    return variance, _mean(input, None if isinstance(dim, bool) else dim, keepdim)


def std_mean(
    input: Entries,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Entries, Entries]:
    """Standard deviation and mean of the specified entries."""
    variance, average = var_mean(input, dim, unbiased, keepdim, correction=correction)
    return root(variance), average


def _record(rule: Callable[..., Any], gradient: str) -> Operation:
    functions, _, methods = functions_named(rule.__name__)
    return Operation(
        rule.__name__,
        "reductions",
        functions,
        named(rule),
        PATTERN,
        gradient,
        identity="the mean",
        methods=methods,
    )


OPERATIONS: tuple[Operation, ...] = (
    _record(var, "2 (x - mean) / (count - correction) at specified entries"),
    _record(std, "(x - mean) / (std (count - correction)) at specified entries, 0 where std is 0"),
    _record(var_mean, "that of var and of mean"),
    _record(std_mean, "that of std and of mean"),
)
