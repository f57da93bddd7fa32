"""Masked functions on plain tensors, with the names and signatures of ``torch.masked``.

Plain tensors in, plain tensors out. The value put into a slot for which nothing was specified is free, its gradient is
exactly 0. Where it matters which slots are empty, use a MaskedTensor: its reductions keep the pattern of the result.

Example:
    >>> import torch
    >>> x = torch.tensor([[1., 2., float("nan")], [float("inf"), 5., 7.]])
    >>> m = torch.tensor([[True, True, False], [False, True, True]])
    >>> mean(x, 1, mask=m)
    tensor([1.5000, 6.0000])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.patterns.boolean import check_mask
from maskgrad.semantics import extrema, norms, reductions
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import Entries

__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "count",
    "mean",
    "norm",
    "prod",
    "std",
    "sum",
    "var",
]

Dim = int | tuple[int, ...] | list[int] | None
F = TypeVar("F", bound=Callable[..., Tensor])

SHARED = """

    Args:
        input: plain tensor of any shape.
        dim: dimension(s) to reduce, counted from either end; None for all.
        keepdim: keep the reduced dimensions with size 1.
        mask: Boolean tensor, True = specified, broadcastable to ``input``; None: all specified.

    Returns:
        Plain tensor of the shape that torch's function gives. Gradient at unspecified entries: exactly 0.

    Raises:
        TypeError: ``input`` is no plain tensor, or ``mask`` is not Boolean.
        ValueError: ``mask`` does not broadcast to ``input`` or lives on another device.
        IndexError: ``dim`` is out of range.

    Source: https://docs.pytorch.org/docs/stable/masked.html (names and signatures).
"""


def _documented(function: F) -> F:
    """Append what is said alike of every function here."""
    function.__doc__ = (function.__doc__ or "").rstrip() + SHARED
    return function


def _entries(input: object, mask: Tensor | None, dtype: torch.dtype | None = None) -> Entries:
    if not isinstance(input, Tensor):
        raise TypeError(
            f"input must be a plain torch.Tensor, found {type(input).__name__}; a MaskedTensor has these as methods"
        )
    values = input if dtype is None else input.to(dtype)
    if mask is None:
        mask = torch.ones((), dtype=torch.bool, device=input.device)
    return Entries(values, check_mask(mask, values.shape, values.device))


@_documented
def sum(
    input: Tensor,
    dim: Dim = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Sum of the specified entries, :math:`\sum_{i: m_i} x_i`; 0 in empty slots.

    Gradient: the incoming one at specified entries. Dense equivalent: ``torch.where(mask, input, 0).sum(dim)``.

    Example:
        >>> sum(torch.tensor([1., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(4.)
    """
    return reductions.sum(_entries(input, mask), dim, keepdim, dtype=dtype).values


@_documented
def mean(
    input: Tensor,
    dim: Dim = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Mean of the specified entries, :math:`\sum_{i: m_i} x_i / \sum_i m_i`.

    Gradient: the incoming one divided by the number of specified entries.
    Dense equivalent: ``input[mask].mean()``, slot by slot.

    Example:
        >>> mean(torch.tensor([1., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(2.)
    """
    return reductions.mean(_entries(input, mask), dim, keepdim, dtype=dtype).values


@_documented
def count(input: Tensor, dim: Dim = None, *, keepdim: bool = False, mask: Tensor | None = None) -> Tensor:
    r"""Number of specified entries, :math:`\sum_i m_i`, as int64.

    Example:
        >>> count(torch.zeros(3), mask=torch.tensor([True, False, True]))
        tensor(2)
    """
    entries = _entries(input, mask)
    return kernels.masked_count(entries.mask, as_dims(dim, entries.mask.ndim), keepdim)


@_documented
def prod(
    input: Tensor,
    dim: int | None = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Product of the specified entries, :math:`\prod_{i: m_i} x_i`; 1 in empty slots.

    Gradient: the product of the other specified entries. Dense equivalent: ``torch.where(mask, input, 1).prod(dim)``.

    Example:
        >>> prod(torch.tensor([2., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(6.)
    """
    return reductions.prod(_entries(input, mask, dtype), dim, keepdim and dim is not None).values


@_documented
def var(
    input: Tensor,
    dim: Dim = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Variance of the specified entries, :math:`\sum_{i: m_i} (x_i - \bar x)^2 / (\sum_i m_i - c)`, correction c.

    Gradient: :math:`2 (x_i - \bar x) / (n - c)` at specified entries.
    Dense equivalent: ``input[mask].var()``, slot by slot.

    Example:
        >>> var(torch.tensor([1., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(2.)
    """
    return reductions.var(_entries(input, mask, dtype), dim, unbiased, keepdim, correction=correction).values


@_documented
def std(
    input: Tensor,
    dim: Dim = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Standard deviation of the specified entries, the root of :func:`var`.

    Gradient: that of the root, and 0 where the deviation is 0, as in torch.
    Dense equivalent: ``input[mask].std()``, slot by slot.

    Example:
        >>> std(torch.tensor([1., float("nan"), 1.]), mask=torch.tensor([True, False, True]))
        tensor(0.)
    """
    return reductions.std(_entries(input, mask, dtype), dim, unbiased, keepdim, correction=correction).values


@_documented
def amax(
    input: Tensor,
    dim: Dim = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Largest specified entry.

    Gradient: shared equally among the specified entries that attain it. Dense equivalent: ``input[mask].amax()``.

    Example:
        >>> amax(torch.tensor([2., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(3.)
    """
    return extrema.amax(_entries(input, mask, dtype), dim, keepdim).values


@_documented
def amin(
    input: Tensor,
    dim: Dim = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Smallest specified entry.

    Gradient: shared equally among the specified entries that attain it. Dense equivalent: ``input[mask].amin()``.

    Example:
        >>> amin(torch.tensor([2., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(2.)
    """
    return extrema.amin(_entries(input, mask, dtype), dim, keepdim).values


@_documented
def argmax(
    input: Tensor,
    dim: int | None = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Position in the original tensor of the first largest specified entry; 0 in empty slots.

    Example:
        >>> argmax(torch.tensor([9., 1., 3.]), mask=torch.tensor([False, True, True]))
        tensor(2)
    """
    return extrema.argmax(_entries(input, mask, dtype), dim, keepdim).values


@_documented
def argmin(
    input: Tensor,
    dim: int | None = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Position in the original tensor of the first smallest specified entry; 0 in empty slots.

    Example:
        >>> argmin(torch.tensor([0., 1., 3.]), mask=torch.tensor([False, True, True]))
        tensor(1)
    """
    return extrema.argmin(_entries(input, mask, dtype), dim, keepdim).values


@_documented
def norm(
    input: Tensor,
    ord: float = 2.0,
    dim: Dim = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Vector norm of the specified entries, :math:`(\sum_{i: m_i} |x_i|^p)^{1/p}`.

    Gradient: torch's, 0 at a zero vector. Dense equivalent: ``torch.linalg.vector_norm(input[mask])``, slot by slot.

    Example:
        >>> norm(torch.tensor([3., float("nan"), 4.]), mask=torch.tensor([True, False, True]))
        tensor(5.)
    """
    return norms.vector_norm(_entries(input, mask), ord, dim, keepdim, dtype=dtype).values


@_documented
def any(input: Tensor, dim: Dim = None, *, keepdim: bool = False, mask: Tensor | None = None) -> Tensor:
    """Whether some specified entry is true; False in empty slots.

    Example:
        >>> any(torch.tensor([True, False]), mask=torch.tensor([False, True]))
        tensor(False)
    """
    return reductions.any(_entries(input, mask), dim, keepdim).values


@_documented
def all(input: Tensor, dim: Dim = None, *, keepdim: bool = False, mask: Tensor | None = None) -> Tensor:
    """Whether every specified entry is true; True in empty slots.

    Example:
        >>> all(torch.tensor([False, True]), mask=torch.tensor([False, True]))
        tensor(True)
    """
    return reductions.all(_entries(input, mask), dim, keepdim).values
