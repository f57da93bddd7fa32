"""Masked functions on plain tensors, with the names and signatures of ``torch.masked``.

Plain tensors in, plain tensors out. ``mask`` is Boolean, True = specified, and broadcasts to ``input``; ``dim`` is an int,
several, or None for all. The value put into a slot for which nothing was specified is free, its gradient is exactly 0.
Where it matters which slots are empty, use a MaskedTensor: its reductions keep the pattern of the result.

Raises (all functions): TypeError for a mask that is not Boolean or an input that is no plain tensor, ValueError for a mask
that does not broadcast, IndexError for a dimension out of range.

Example:
    >>> import torch
    >>> x = torch.tensor([[1., 2., float("nan")], [float("inf"), 5., 7.]])
    >>> m = torch.tensor([[True, True, False], [False, True, True]])
    >>> mean(x, 1, mask=m)
    tensor([1.5000, 6.0000])

Source: the signatures follow ``torch.masked`` (https://docs.pytorch.org/docs/stable/masked.html).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.patterns.boolean import check_mask
from maskgrad.semantics import extrema, norms, reductions
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import Entries

__all__ = ["all", "amax", "amin", "any", "argmax", "argmin", "count", "mean", "norm", "prod", "std", "sum", "var"]

Dim = int | tuple[int, ...] | list[int] | None


def _entries(input: object, mask: Tensor | None, dtype: torch.dtype | None = None) -> Entries:
    if not isinstance(input, Tensor):
        raise TypeError(f"input must be a plain torch.Tensor, found {type(input).__name__}; a MaskedTensor has these as methods")
    values = input if dtype is None else input.to(dtype)
    if mask is None:
        mask = torch.ones((), dtype=torch.bool, device=input.device)
    return Entries(values, check_mask(mask, values.shape, values.device))


def sum(  # noqa: A001
    input: Tensor, dim: Dim = None, *, keepdim: bool = False, dtype: torch.dtype | None = None, mask: Tensor | None = None
) -> Tensor:
    r"""Sum of the specified entries, :math:`\sum_{i: m_i} x_i`; 0 in empty slots.

    Gradient: the incoming one at specified entries. Dense equivalent: ``torch.where(mask, input, 0).sum(dim)``.

    Example:
        >>> sum(torch.tensor([1., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(4.)
    """
    return reductions.sum(_entries(input, mask), dim, keepdim, dtype=dtype).values


def mean(
    input: Tensor, dim: Dim = None, *, keepdim: bool = False, dtype: torch.dtype | None = None, mask: Tensor | None = None
) -> Tensor:
    r"""Mean of the specified entries, :math:`\sum_{i: m_i} x_i / \sum_i m_i`.

    Gradient: the incoming one divided by the number of specified entries. Dense equivalent: ``input[mask].mean()``, slot by slot.

    Example:
        >>> mean(torch.tensor([1., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(2.)
    """
    return reductions.mean(_entries(input, mask), dim, keepdim, dtype=dtype).values


def count(input: Tensor, dim: Dim = None, *, keepdim: bool = False, mask: Tensor | None = None) -> Tensor:
    r"""Number of specified entries, :math:`\sum_i m_i`, as int64.

    Example:
        >>> count(torch.zeros(3), mask=torch.tensor([True, False, True]))
        tensor(2)
    """
    entries = _entries(input, mask)
    return kernels.masked_count(entries.mask, as_dims(dim, entries.mask.ndim), keepdim)


def prod(
    input: Tensor, dim: int | None = None, *, keepdim: bool = False, dtype: torch.dtype | None = None, mask: Tensor | None = None
) -> Tensor:
    r"""Product of the specified entries, :math:`\prod_{i: m_i} x_i`; 1 in empty slots.

    Gradient: the product of the other specified entries. Dense equivalent: ``torch.where(mask, input, 1).prod(dim)``.

    Example:
        >>> prod(torch.tensor([2., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(6.)
    """
    return reductions.prod(_entries(input, mask, dtype), dim, keepdim and dim is not None).values


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
    r"""Variance of the specified entries, :math:`\sum_{i: m_i} (x_i - \bar x)^2 / (\sum_i m_i - c)` with correction c (default 1).

    Gradient: :math:`2 (x_i - \bar x) / (n - c)` at specified entries. Dense equivalent: ``input[mask].var()``, slot by slot.

    Example:
        >>> var(torch.tensor([1., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(2.)
    """
    return reductions.var(_entries(input, mask, dtype), dim, unbiased, keepdim, correction=correction).values


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
    """Standard deviation of the specified entries, the root of :func:`var`; its gradient is 0 where it is 0, as in torch.

    Example:
        >>> std(torch.tensor([1., float("nan"), 1.]), mask=torch.tensor([True, False, True]))
        tensor(0.)
    """
    return reductions.std(_entries(input, mask, dtype), dim, unbiased, keepdim, correction=correction).values


def amax(
    input: Tensor, dim: Dim = None, *, keepdim: bool = False, dtype: torch.dtype | None = None, mask: Tensor | None = None
) -> Tensor:
    """Largest specified entry. Gradient: shared equally among the specified entries that attain it.

    Example:
        >>> amax(torch.tensor([2., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(3.)
    """
    return extrema.amax(_entries(input, mask, dtype), dim, keepdim).values


def amin(
    input: Tensor, dim: Dim = None, *, keepdim: bool = False, dtype: torch.dtype | None = None, mask: Tensor | None = None
) -> Tensor:
    """Smallest specified entry. Gradient: shared equally among the specified entries that attain it.

    Example:
        >>> amin(torch.tensor([2., float("nan"), 3.]), mask=torch.tensor([True, False, True]))
        tensor(2.)
    """
    return extrema.amin(_entries(input, mask, dtype), dim, keepdim).values


def argmax(
    input: Tensor, dim: int | None = None, *, keepdim: bool = False, dtype: torch.dtype | None = None, mask: Tensor | None = None
) -> Tensor:
    """Position in the original tensor of the first largest specified entry; 0 in empty slots.

    Example:
        >>> argmax(torch.tensor([9., 1., 3.]), mask=torch.tensor([False, True, True]))
        tensor(2)
    """
    return extrema.argmax(_entries(input, mask, dtype), dim, keepdim).values


def argmin(
    input: Tensor, dim: int | None = None, *, keepdim: bool = False, dtype: torch.dtype | None = None, mask: Tensor | None = None
) -> Tensor:
    """Position in the original tensor of the first smallest specified entry; 0 in empty slots.

    Example:
        >>> argmin(torch.tensor([0., 1., 3.]), mask=torch.tensor([False, True, True]))
        tensor(1)
    """
    return extrema.argmin(_entries(input, mask, dtype), dim, keepdim).values


def norm(
    input: Tensor,
    ord: float = 2.0,
    dim: Dim = None,
    *,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Vector norm of the specified entries, :math:`(\sum_{i: m_i} |x_i|^p)^{1/p}`. Gradient: 0 at a zero vector, as in torch.

    Example:
        >>> norm(torch.tensor([3., float("nan"), 4.]), mask=torch.tensor([True, False, True]))
        tensor(5.)
    """
    return norms.vector_norm(_entries(input, mask), ord, dim, keepdim, dtype=dtype).values


def any(input: Tensor, dim: Dim = None, *, keepdim: bool = False, mask: Tensor | None = None) -> Tensor:  # noqa: A001
    """Whether some specified entry is true; False in empty slots.

    Example:
        >>> any(torch.tensor([True, False]), mask=torch.tensor([False, True]))
        tensor(False)
    """
    return reductions.any(_entries(input, mask), dim, keepdim).values


def all(input: Tensor, dim: Dim = None, *, keepdim: bool = False, mask: Tensor | None = None) -> Tensor:  # noqa: A001
    """Whether every specified entry is true; True in empty slots.

    Example:
        >>> all(torch.tensor([False, True]), mask=torch.tensor([False, True]))
        tensor(True)
    """
    return reductions.all(_entries(input, mask), dim, keepdim).values
