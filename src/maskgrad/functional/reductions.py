"""Reductions, medians and quantiles over the specified entries of a plain tensor."""

from __future__ import annotations

from math import inf, nan

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.functional.arguments import Dim, Dtype, Mask, documented, entries_of, reduced
from maskgrad.semantics import extrema, norms, order_statistics, reductions, softmax, variance
from maskgrad.semantics.dimensions import as_dims


@documented
def sum(
    input: Tensor, dim: Dim = None, *, keepdim: bool = False, dtype: Dtype = None, mask: Mask = None
) -> Tensor:
    r"""Sum of the specified entries, :math:`\sum_{i: m_i} x_i`; 0 where nothing is specified.

    Gradient: the incoming one at specified entries. Dense equivalent: ``torch.where(mask, input, 0).sum(dim)``.

    Example:
        >>> sum(torch.tensor([1., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(4.)
    """
    return reductions.sum(entries_of(input, mask), dim, keepdim, dtype=dtype).values


@documented
def mean(
    input: Tensor, dim: Dim = None, *, keepdim: bool = False, dtype: Dtype = None, mask: Mask = None
) -> Tensor:
    r"""Mean of the specified entries, :math:`\sum_{i: m_i} x_i / \sum_i m_i`; NaN where nothing is specified.

    Gradient: the incoming one divided by the number of specified entries.
    Dense equivalent: ``input[mask].mean()``, for each result.

    Example:
        >>> mean(torch.tensor([1., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(2.)
    """
    return reduced(reductions.mean(entries_of(input, mask), dim, keepdim, dtype=dtype), dim, nan)


@documented
def count(input: Tensor, dim: Dim = None, *, keepdim: bool = False, mask: Mask = None) -> Tensor:
    r"""Number of specified entries, :math:`\sum_i m_i`, as int64.

    Example:
        >>> count(torch.zeros(3), mask=torch.tensor([True, False, True]))
        tensor(2)
    """
    entries = entries_of(input, mask)
    return kernels.masked_count(entries.mask, as_dims(dim, entries.mask.ndim), keepdim)


@documented
def prod(
    input: Tensor, dim: int | None = None, *, keepdim: bool = False, dtype: Dtype = None, mask: Mask = None
) -> Tensor:
    r"""Product of the specified entries, :math:`\prod_{i: m_i} x_i`; 1 where nothing is specified.

    Gradient: the product of the other specified entries. Dense equivalent: ``torch.where(mask, input, 1).prod(dim)``.

    Example:
        >>> prod(torch.tensor([2., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(6.)
    """
    return reductions.prod(entries_of(input, mask, dtype), dim, keepdim and dim is not None).values


@documented
def var(
    input: Tensor,
    dim: Dim = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: Dtype = None,
    mask: Mask = None,
) -> Tensor:
    r"""Variance of the specified entries, :math:`\sum_{i: m_i} (x_i - \bar x)^2 / (\sum_i m_i - c)`, correction c.

    NaN, with a gradient of zero, where there are no more entries than c.

    Gradient: :math:`2 (x_i - \bar x) / (n - c)` at specified entries.
    Dense equivalent: ``input[mask].var()``, for each result.

    Example:
        >>> var(torch.tensor([1., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(2.)
    """
    found = variance.var(entries_of(input, mask, dtype), dim, unbiased, keepdim, correction=correction)
    return reduced(found, dim, nan)


@documented
def std(
    input: Tensor,
    dim: Dim = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: Dtype = None,
    mask: Mask = None,
) -> Tensor:
    """Standard deviation of the specified entries, the square root of :func:`var`.

    Gradient: that of the square root, and 0 where the deviation is 0, as in torch.
    Dense equivalent: ``input[mask].std()``, for each result.

    Example:
        >>> std(torch.tensor([1., float("nan"), 1.]), mask=torch.tensor([True, False, True]))
        tensor(0.)
    """
    found = variance.std(entries_of(input, mask, dtype), dim, unbiased, keepdim, correction=correction)
    return reduced(found, dim, nan)


@documented
def amax(
    input: Tensor, dim: Dim = None, *, keepdim: bool = False, dtype: Dtype = None, mask: Mask = None
) -> Tensor:
    """Largest specified entry; -inf where nothing is specified, the least value of an integer dtype.

    Gradient: shared equally among ties. Dense equivalent: ``input[mask].amax()``.

    Example:
        >>> amax(torch.tensor([2., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(3.)
    """
    return extrema.amax(entries_of(input, mask, dtype), dim, keepdim).values


@documented
def amin(
    input: Tensor, dim: Dim = None, *, keepdim: bool = False, dtype: Dtype = None, mask: Mask = None
) -> Tensor:
    """Smallest specified entry; inf where nothing is specified, the greatest value of an integer dtype.

    Gradient: shared equally among ties. Dense equivalent: ``input[mask].amin()``.

    Example:
        >>> amin(torch.tensor([2., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(2.)
    """
    return extrema.amin(entries_of(input, mask, dtype), dim, keepdim).values


@documented
def argmax(
    input: Tensor, dim: int | None = None, *, keepdim: bool = False, dtype: Dtype = None, mask: Mask = None
) -> Tensor:
    """Position in the original tensor of the first largest specified entry; 0 where nothing is specified.

    Example:
        >>> argmax(torch.tensor([9., 1., 3.]), mask=torch.tensor([False, True, True]))
        tensor(2)
    """
    return extrema.argmax(entries_of(input, mask, dtype), dim, keepdim).values


@documented
def argmin(
    input: Tensor, dim: int | None = None, *, keepdim: bool = False, dtype: Dtype = None, mask: Mask = None
) -> Tensor:
    """Position in the original tensor of the first smallest specified entry; 0 where nothing is specified.

    Example:
        >>> argmin(torch.tensor([0., 1., 3.]), mask=torch.tensor([False, True, True]))
        tensor(1)
    """
    return extrema.argmin(entries_of(input, mask, dtype), dim, keepdim).values


@documented
def norm(
    input: Tensor,
    ord: float = 2.0,
    dim: Dim = None,
    *,
    keepdim: bool = False,
    dtype: Dtype = None,
    mask: Mask = None,
) -> Tensor:
    r"""Vector norm of the specified entries, :math:`(\sum_{i: m_i} |x_i|^p)^{1/p}`.

    Where nothing is specified: 0, or inf for a negative order.

    Gradient: torch's, 0 at a zero vector. Dense equivalent: ``torch.linalg.vector_norm(input[mask])``, for each result.

    Example:
        >>> norm(torch.tensor([3., float("nan"), 4.]), mask=torch.tensor([True, False, True]))
        tensor(5.)
    """
    found = norms.vector_norm(entries_of(input, mask), ord, dim, keepdim, dtype=dtype)
    return reduced(found, dim, inf if ord < 0 else 0)


@documented
def any(input: Tensor, dim: Dim = None, *, keepdim: bool = False, mask: Mask = None) -> Tensor:
    """Return whether any specified entry is true; False where nothing is specified.

    Example:
        >>> any(torch.tensor([True, False]), mask=torch.tensor([False, True]))
        tensor(False)
    """
    return reductions.any(entries_of(input, mask), dim, keepdim).values


@documented
def all(input: Tensor, dim: Dim = None, *, keepdim: bool = False, mask: Mask = None) -> Tensor:
    """Return whether every specified entry is true; True where nothing is specified.

    Example:
        >>> all(torch.tensor([False, True]), mask=torch.tensor([False, True]))
        tensor(True)
    """
    return reductions.all(entries_of(input, mask), dim, keepdim).values


@documented
def logsumexp(
    input: Tensor, dim: Dim = None, *, keepdim: bool = False, dtype: Dtype = None, mask: Mask = None
) -> Tensor:
    r"""Logarithm of the sum of the exponentials of the specified entries, :math:`\log \sum_{i: m_i} e^{x_i}`.

    -inf where nothing is specified.

    Gradient: the softmax of the specified entries. Dense equivalent: ``input[mask].logsumexp()``, for each result.

    Example:
        >>> logsumexp(torch.tensor([0., float("nan"), 0.]), mask=torch.tensor([True, False, True]))
        tensor(0.6931)
    """
    entries = entries_of(input, mask, dtype)
    return softmax.logsumexp(entries, as_dims(dim, entries.mask.ndim), keepdim).values


@documented
def median(
    input: Tensor, dim: int = -1, *, keepdim: bool = False, dtype: Dtype = None, mask: Mask = None
) -> Tensor:
    """Median of the specified entries, the lower of two.

    NaN where nothing is specified; the least value of an integer dtype, as in torch.

    Gradient: to the entry that is the median. Dense equivalent: ``input[mask].median()``, for each result.

    Example:
        >>> median(torch.tensor([5., float("nan"), 1., 3.]), mask=torch.tensor([True, False, True, True]))
        tensor(3.)
    """
    found = order_statistics.median(entries_of(input, mask, dtype), dim, keepdim)[0]
    is_integer = not found.values.dtype.is_floating_point
    return reduced(found, dim, torch.iinfo(found.values.dtype).min if is_integer else nan)


@documented
def quantile(
    input: Tensor,
    q: float | Tensor,
    dim: int | None = None,
    *,
    keepdim: bool = False,
    interpolation: str = "linear",
    dtype: Dtype = None,
    mask: Mask = None,
) -> Tensor:
    """Quantiles ``q`` (between 0 and 1; a number or a 1-D tensor) of the specified entries.

    NaN where nothing is specified.

    Gradient: to the one or two entries between which the quantile lies. Dense equivalent: ``input[mask].quantile(q)``.

    Example:
        >>> quantile(torch.tensor([5., float("nan"), 1., 3.]), 0.25, mask=torch.tensor([True, False, True, True]))
        tensor(2.)
    """
    entries = entries_of(input, mask, dtype)
    found = order_statistics.quantile(entries, q, dim, keepdim, interpolation=interpolation)
    return reduced(found, dim, nan)
