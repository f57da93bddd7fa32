"""Softmax and related functions, normalisation and scans, over the specified entries of a plain tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.functional.arguments import Dim, Dtype, Mask, documented, entries_of
from maskgrad.semantics import norms, scans
from maskgrad.semantics import softmax as rules
from maskgrad.semantics.entries import Entries


@documented
def softmax(input: Tensor, dim: int, *, dtype: Dtype = None, mask: Mask = None) -> Tensor:
    r"""Probabilities of the specified entries, :math:`e^{x_i} / \sum_{j: m_j} e^{x_j}`.

    Gradient: torch's, over the specified entries. Dense equivalent: ``input[mask].softmax(0)``, for each slice.

    Example:
        >>> softmax(torch.tensor([1., float("nan"), 1.]), 0, mask=torch.tensor([True, False, True]))[[0, 2]]
        tensor([0.5000, 0.5000])
    """
    return rules.softmax(entries_of(input, mask, dtype), dim).values


@documented
def log_softmax(input: Tensor, dim: int, *, dtype: Dtype = None, mask: Mask = None) -> Tensor:
    r"""Logarithms of :func:`softmax`, :math:`x_i - \log \sum_{j: m_j} e^{x_j}`.

    Gradient: torch's, over the specified entries. Dense equivalent: ``input[mask].log_softmax(0)``, for each slice.

    Example:
        >>> log_softmax(torch.tensor([1., float("nan"), 1.]), 0, mask=torch.tensor([True, False, True]))[[0, 2]]
        tensor([-0.6931, -0.6931])
    """
    return rules.log_softmax(entries_of(input, mask, dtype), dim).values


@documented
def softmin(input: Tensor, dim: int, *, dtype: Dtype = None, mask: Mask = None) -> Tensor:
    r"""Softmax of the negated entries, :math:`e^{-x_i} / \sum_{j: m_j} e^{-x_j}`.

    Gradient: torch's, over the specified entries. Dense equivalent: ``(-input[mask]).softmax(0)``, for each slice.

    Example:
        >>> softmin(torch.tensor([1., float("nan"), 1.]), 0, mask=torch.tensor([True, False, True]))[[0, 2]]
        tensor([0.5000, 0.5000])
    """
    return rules.softmin(entries_of(input, mask, dtype), dim).values


@documented
def normalize(
    input: Tensor, ord: float, dim: Dim = None, *, eps: float = 1e-12, dtype: Dtype = None, mask: Mask = None
) -> Tensor:
    r"""Divide by the norm of the specified entries, :math:`x_i / \max(\lVert x \rVert_p, \varepsilon)`.

    Gradient: torch's, over the specified entries.
    Dense equivalent: ``F.normalize(input[mask], ord, 0)``, for each slice.

    Example:
        >>> normalize(torch.tensor([3., float("nan"), 4.]), 2., 0, mask=torch.tensor([True, False, True]))[[0, 2]]
        tensor([0.6000, 0.8000])
    """
    entries = entries_of(input, mask, dtype)
    norm = norms.vector_norm(entries, ord, dim, True).values
    return torch.where(entries.mask, entries.values, 0) / norm.clamp_min(eps)


@documented
def cumsum(input: Tensor, dim: int, *, dtype: Dtype = None, mask: Mask = None) -> Tensor:
    r"""Running sum of the specified entries, :math:`\sum_{j \le i: m_j} x_j` where ``i`` is specified.

    Gradient: the sum of incoming ones from here on, where specified. Dense equivalent: ``input[mask].cumsum(0)``.

    Example:
        >>> cumsum(torch.tensor([1., float("nan"), 3.]), 0, mask=torch.tensor([True, False, True]))[[0, 2]]
        tensor([1., 4.])
    """
    return scans.cumsum(entries_of(input, mask), dim, dtype=dtype).values


@documented
def cumprod(input: Tensor, dim: int, *, dtype: Dtype = None, mask: Mask = None) -> Tensor:
    r"""Running product of the specified entries, :math:`\prod_{j \le i: m_j} x_j` where ``i`` is specified.

    Gradient: torch's, over the specified entries. Dense equivalent: ``input[mask].cumprod(0)``.

    Example:
        >>> cumprod(torch.tensor([2., float("nan"), 3.]), 0, mask=torch.tensor([True, False, True]))[[0, 2]]
        tensor([2., 6.])
    """
    return scans.cumprod(entries_of(input, mask), dim, dtype=dtype).values


def logaddexp(
    input: Tensor, other: Tensor, *, dtype: Dtype = None, input_mask: Mask = None, other_mask: Mask = None
) -> Tensor:
    r"""Logarithm of the sum of two exponentials, :math:`\log(e^{x_i} + e^{y_i})`; unspecified ones are ignored.

    -inf where neither is specified.

    Gradient: the weight of each specified term. Dense equivalent: ``torch.logaddexp`` with -inf where unspecified.

    Args:
        input: plain tensor of any shape.
        other: plain tensor of the same shape.
        dtype: dtype to compute in and to return.
        input_mask: Boolean tensor (or integers 0 and 1), True = specified, with the dimensions of ``input``, size 1
            where it repeats; None: all specified.
        other_mask: the same for ``other``.

    Returns:
        Plain tensor of the common shape. Gradient at unspecified entries: exactly 0.

    Raises:
        TypeError: an operand is not a plain tensor, or a mask is not one of Booleans or integers.
        ValueError: a mask contains other integers, has fewer dimensions than its operand or does not broadcast to it.

    Example:
        >>> x, y = torch.tensor([0., float("nan")]), torch.tensor([0., 2.])
        >>> logaddexp(x, y, input_mask=torch.tensor([True, False]))
        tensor([0.6931, 2.0000])

    Source: https://docs.pytorch.org/docs/stable/masked.html (name and signature).
    """
    pair = [
        entries_of(input, input_mask, dtype, "input_mask"),
        entries_of(other, other_mask, dtype, "other_mask"),
    ]
    values = torch.stack(torch.broadcast_tensors(*[entries.values for entries in pair]))
    mask = torch.stack(torch.broadcast_tensors(*[entries.mask for entries in pair]))
    return rules.logsumexp(Entries(values, mask), 0).values
