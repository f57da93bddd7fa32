r"""Variances and standard deviations of the specified entries.

.. math:: v = \frac{\sum_{i: m_i} (x_i - \bar x)^2}{\max(0, n - c)}, \qquad
          \frac{\partial v}{\partial x_i} = \frac{2 (x_i - \bar x)}{n - c} \quad (m_i)
"""

from __future__ import annotations

from math import nan
from typing import Any

import torch

from maskgrad import kernels
from maskgrad.kernels.reductions import some
from maskgrad.mode import mode
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import of_rule
from maskgrad.semantics.numbers import Number

PATTERN = "along a dimension: specified where more entries than the correction were; else a plain scalar"


def _real_variance(input: Entries, dims: tuple[int, ...], keepdim: bool, correction: float) -> Entries:
    variance, _, count = kernels.masked_variance(*input, dims, keepdim, correction)
    enough = some(count, input.mask, dims, keepdim, max(correction, 0))
    # no estimate from too few entries: no 0 / 0, and no gradient, of any order
    return Entries(torch.where(enough, variance, 0), enough)


def var(
    input: Entries,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Entries:
    """Variance of the specified entries; for complex ones the sum of the variances of both parts, as in torch."""
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
    if not values.is_complex():
        variance, present = _real_variance(input, dims, keepdim, correction)
        return Entries(variance.to(values.dtype), present)
    real, imaginary = (
        _real_variance(Entries(part, mask), dims, keepdim, correction) for part in (values.real, values.imag)
    )
    return Entries(real.values + imaginary.values, real.mask)


def root(variance: Entries) -> Entries:
    """Square root whose gradient at 0 is 0, as in torch.std."""
    values = variance.values
    if not values.requires_grad and mode() == "eager":
        return Entries(values.sqrt(), variance.mask)
    flat = values == 0
    return Entries(torch.where(flat, 0, torch.where(flat, 1, values).sqrt()), variance.mask)


def std(input: Entries, *args: Any, **kwargs: Any) -> Entries:
    """Standard deviation of the specified entries; the arguments are those of :func:`var`."""
    return root(var(input, *args, **kwargs))


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
    dims = as_dims(None if isinstance(dim, bool) else dim, input.values.ndim)
    average, count = kernels.masked_mean(*input, dims, keepdim, None)
    return variance, Entries(average, some(count, input.mask, dims, keepdim))


def std_mean(input: Entries, *args: Any, **kwargs: Any) -> tuple[Entries, Entries]:
    """Standard deviation and mean of the specified entries; the arguments are those of :func:`var`."""
    variance, average = var_mean(input, *args, **kwargs)
    return root(variance), average


GRADIENTS = {
    var: "2 (x - mean) / (count - correction) at specified entries",
    std: "(x - mean) / (std (count - correction)) at specified entries, 0 where std is 0",
    var_mean: "that of var and of mean",
    std_mean: "that of std and of mean",
}
OPERATIONS = tuple(
    of_rule(rule, "reductions", PATTERN, gradient, number=Number(nan), padded="mask")
    for rule, gradient in GRADIENTS.items()
)
