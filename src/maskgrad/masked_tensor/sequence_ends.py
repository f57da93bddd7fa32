"""The first and last positions of each sequence, and all others: by its own length, not that of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeGuard, TypeVar

import torch
from torch import Tensor

from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries, stored_of
from maskgrad.mode import can_read
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.jagged.features import ends
from maskgrad.semantics.jagged.indexing import picked
from maskgrad.semantics.jagged.rows import is_jagged, of_lengths, rows_at
from maskgrad.semantics.own_sizes import blocks, own_sizes

if TYPE_CHECKING:
    from maskgrad.semantics.jagged.rows import Jagged

__all__ = ["METHODS"]

CLOSE_GAPS = (
    "Close the gaps first, mg.from_sequences([row.compressed() for row in x]); x[:, :n] and x[:, n:] cut at "
    "positions of the padded batch."
)


SHARED = """

    Args:
        self: a MaskedTensor, jagged or with a Boolean mask of sequences that are padded at the end. Without ``n`` the
            mask may have holes.
        n: number of positions; a shorter sequence has all of them, or none.
        dim: the dimension of the positions.

    Returns:
        MaskedTensor with as many positions as remain of the longest possible sequence, moved to the front, jagged if
        ``x`` is; without ``n`` without that dimension, and unspecified where a sequence is empty. Gradient: reaches
        these positions.

    Raises:
        TypeError, ValueError: ``n`` is not a number of positions.
        UndefinedOnMaskedError: the mask has holes (in eager mode on the CPU; elsewhere a sequence ends at its first).
"""
F = TypeVar("F", bound=Callable[..., MaskedTensor])


def _documented(function: F) -> F:
    function.__doc__ = (function.__doc__ or "").rstrip() + SHARED
    return function


@_documented
def first(self: MaskedTensor, n: int | None = None, dim: int = 1) -> MaskedTensor:
    """Return the first ``n`` positions of each sequence; without ``n`` its first specified one.

    Dense equivalent: ``x[b, :n]`` for each sequence separately.

    Example:
        >>> import torch, maskgrad as mg
        >>> x = mg.from_lengths(torch.arange(6.).reshape(2, 3), torch.tensor([3, 1]))
        >>> x.first(2)
        masked([[0., 1.],
                [3., --]])
        >>> x.first()
        masked([0., 3.])
    """
    return _one(self, dim, last=False) if n is None else _some(self, "first", n, dim)


@_documented
def last(self: MaskedTensor, n: int | None = None, dim: int = 1) -> MaskedTensor:
    """Return the last ``n`` positions of each sequence; without ``n`` its last specified one.

    Dense equivalent: ``x[b, -n:]`` for each sequence separately.

    Example:
        >>> import torch, maskgrad as mg
        >>> x = mg.from_lengths(torch.arange(6.).reshape(2, 3), torch.tensor([3, 1]))
        >>> x.last(2), x.last()
        (masked([[1., 2.],
                [3., --]]), masked([2., 3.]))
    """
    return _one(self, dim, last=True) if n is None else _some(self, "last", n, dim)


@_documented
def drop_first(self: MaskedTensor, n: int, dim: int = 1) -> MaskedTensor:
    """Return all but the first ``n`` positions of each sequence.

    Dense equivalent: ``x[b, n:]`` for each sequence separately.

    Example:
        >>> import torch, maskgrad as mg
        >>> ids = mg.from_lengths(torch.arange(6).reshape(2, 3), torch.tensor([3, 1]))
        >>> ids.drop_first(1)  # the labels of ids.drop_last(1)
        masked([[ 1,  2],
                [--, --]])
    """
    return _some(self, "drop_first", n, dim)


@_documented
def drop_last(self: MaskedTensor, n: int, dim: int = 1) -> MaskedTensor:
    """Return all but the last ``n`` positions of each sequence.

    Dense equivalent: ``x[b, :max(len(x[b]) - n, 0)]`` for each sequence separately.

    Example:
        >>> import torch, maskgrad as mg
        >>> ids = mg.from_lengths(torch.arange(6).reshape(2, 3), torch.tensor([3, 1]))
        >>> ids.drop_last(1), ids[:, :-1]
        (masked([[ 0,  1],
                [--, --]]), masked([[ 0,  1],
                [ 3, --]]))
    """
    return _some(self, "drop_last", n, dim)


def _some(x: MaskedTensor, name: str, n: int, dim: int) -> MaskedTensor:
    """Return consecutive positions of each sequence: start and number depend on its length."""
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"n must be an integer, found {type(n).__name__}; use x.{name}(1)")
    if n < 0:
        raise ValueError(f"n must be at least 0, found {n}; use x.{name}({-n})")
    dim = as_dim(dim, len(x.shape))
    total = x.shape[dim]
    size = min(n, total) if name in ("first", "last") else max(total - n, 0)
    stored = stored_of(x)
    if _is_ragged(stored, dim) and can_read(x._values):
        pattern = stored.pattern
        start, length = _within(name, pattern.lengths(), n)
        shorter = of_lengths(length, (*pattern.sizes[:-1], size), pattern.at)
        rows = rows_at(pattern.offsets[:-1] + start, shorter)
        return MaskedTensor(x._values.index_select(0, rows), shorter)
    values, mask = x._dense()
    (length,) = own_sizes(f"x.{name}(n)", CLOSE_GAPS, mask, (dim,))
    start, length = _within(name, length, n)
    if name == "last":  # each sequence's own positions
        places = torch.arange(size, device=values.device).reshape(-1, *(1,) * (values.ndim - 1 - dim)) + start
        shape = (*values.shape[:dim], size, *values.shape[dim + 1 :])
        found = values.gather(dim, places.clamp(max=max(total - 1, 0)).expand(shape))
    else:
        found = values.narrow(dim, min(n, total) if name == "drop_first" else 0, size)
    return of_entries(found, blocks((length,), (dim,), found.shape).expand(found.shape))


def _is_ragged(stored: object, dim: int) -> TypeGuard[Jagged]:
    return is_jagged(stored) and not stored.pattern.is_flat and stored.pattern.at[-1] == dim


def _within(name: str, length: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return the start and length of the requested part of each sequence."""
    part = length.clamp(max=n) if name in ("first", "last") else (length - n).clamp(min=0)
    at_the_end = name in ("last", "drop_first")
    return length - part if at_the_end else torch.zeros_like(length), part


def _one(x: MaskedTensor, dim: int, last: bool) -> MaskedTensor:
    """Return the first or last specified position of each sequence, without their dimension."""
    dim = as_dim(dim, len(x.shape))
    stored = stored_of(x)
    if _is_ragged(stored, dim):
        return of_entries(*picked(stored, *ends(stored.pattern, last)))
    values, mask = x._dense()
    size = values.shape[dim]
    if not size:
        raise IndexError(f"{'last' if last else 'first'}() of dimension {dim} with size 0")
    places = torch.arange(size, device=values.device).reshape(-1, *(1,) * (values.ndim - 1 - dim))
    if last:
        at = torch.where(mask, places, 0).amax(dim, keepdim=True)
    else:
        at = torch.where(mask, places, size - 1).amin(dim, keepdim=True)
    return of_entries(values.gather(dim, at).squeeze(dim), mask.any(dim))


METHODS = (first, last, drop_first, drop_last)
