"""Ranks of the specified entries along a dimension."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries, stored_of
from maskgrad.other_data import conversion_of, has_own_mask
from maskgrad.semantics.dimensions import as_dim, positions_along
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.jagged.rows import from_padded, is_jagged
from maskgrad.semantics.sorting import sorted_positions
from maskgrad.semantics.stored.entries import StoredEntries, densified, exploded
from maskgrad.semantics.stored.groups import group

__all__ = ["ranks"]

AnyTensor = TypeVar("AnyTensor", Tensor, MaskedTensor)


def ranks(x: AnyTensor, dim: int = -1, *, descending: bool = False) -> AnyTensor:
    r"""Return the ranks of the specified entries along a dimension: 0 for the smallest.

    .. math:: r_i = \#\{j : m_j,\; x_j < x_i\} + \#\{j < i : m_j,\; x_j = x_i\}

    ``x.argsort(dim)`` moves the specified positions to the front, so that ``x.argsort(dim).argsort(dim)`` does not
    match the positions of ``x``; this does.

    Args:
        x: a MaskedTensor of any layout, or a plain tensor (fully specified). NaN ranks above infinity.
        dim: the dimension to rank along.
        descending: 0 for the largest. Ties are ranked in their order either way.

    Returns:
        int64, of the shape, the pattern and the layout of ``x``; a plain tensor if ``x`` is one. Gradient: none.

    Raises:
        TypeError: ``x`` is not a tensor.
        IndexError: ``dim`` is out of range.

    Dense equivalent: ``x.argsort(dim, stable=True).argsort(dim)``, on each slice without its unspecified entries.

    Example:
        >>> x = mg.from_nan(torch.tensor([30., float("nan"), 10., 20., 10.]))
        >>> mg.ranks(x)
        masked([3, --, 0, 2, 1])
        >>> mg.ranks(x, descending=True)
        masked([0, --, 2, 1, 3])

    Source: ``scipy.stats.rankdata(x, method="ordinal", nan_policy="omit") - 1``.
    """
    if not isinstance(x, MaskedTensor):
        if not isinstance(x, Tensor) or x.layout != torch.strided or has_own_mask(x):
            raise TypeError(
                f"x must be a strided tensor or a MaskedTensor, found {type(x).__name__}; use {conversion_of(x, 'x')}"
            )
        return _inverse(x.argsort(dim=dim, descending=descending, stable=True), as_dim(dim, x.ndim))
    dim, stored = as_dim(dim, len(x.shape)), stored_of(x)
    if stored is None:
        values, mask = x._dense()
        order = sorted_positions(Entries(values, mask), dim, descending)
        return of_entries(_inverse(order, dim), mask)
    if is_jagged(stored):
        order = sorted_positions(densified(stored), dim, descending)
        found = from_padded(_inverse(order, dim), stored.pattern)
        return MaskedTensor(found.values, found.pattern)
    return _of_stored(stored, dim, descending)


def _inverse(order: Tensor, dim: int) -> Tensor:
    """Invert a permutation of a dimension."""
    return torch.empty_like(order).scatter(dim, order, positions_along(order, dim).expand(order.shape))


def _of_stored(x: StoredEntries, dim: int, descending: bool) -> MaskedTensor:
    """Sort by value, then stably by slice; the rank is the distance from the first entry of the slice."""
    coordinates, entries, sizes = exploded(x)
    groups = group(coordinates, sizes, (dim,))
    by_value = entries.detach().argsort(descending=descending, stable=True)
    order = by_value[groups.index[by_value].argsort(stable=True)]
    first = groups.count().cumsum(0) - groups.count()
    found = _inverse(order, 0) - first[groups.index]
    return MaskedTensor(x.pattern.gathered(found.reshape(x.entries.shape)), x.pattern)
