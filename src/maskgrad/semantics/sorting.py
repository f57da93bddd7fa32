"""Sorting: the specified entries in torch's order, the unspecified ones behind them, ascending or descending.

No value serves as a sentinel: a specified NaN sorts where torch sorts it, before what is unspecified. Positions count
in the original tensor; behind the last specified entry they are unspecified, like the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad import kernels
from maskgrad.kernels.extrema import lowest
from maskgrad.semantics.compaction import positions_along, size_along, specified_first
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries, filler_as
from maskgrad.semantics.facts import of_rule

if TYPE_CHECKING:
    from torch import Tensor


def read(input: Entries, dim: int, index: Tensor) -> Tensor:
    """The values at these positions, 0 where unspecified; the gradient goes back there."""
    return torch.where(input.mask, input.values, filler_as(input.values.dtype, 0)).gather(dim, index)


def sorted_positions(input: Entries, dim: int, descending: bool = False) -> Tensor:
    """The permutation that sorts, stably: by value first, then by being specified."""
    values, mask = input
    safe = torch.where(mask, values.detach(), filler_as(values.dtype, 0))
    by_value = torch.sort(safe, dim=dim, descending=descending, stable=True).indices
    # stable too: among the specified entries the order of the values is kept
    return by_value.gather(dim, specified_first(mask.gather(dim, by_value), dim))


def leading(mask: Tensor, dim: int) -> Tensor:
    """The pattern with its specified entries moved to the front."""
    return positions_along(mask, dim) < kernels.masked_count(mask, (dim,), True)


def sort(input: Entries, dim: int = -1, descending: bool = False, *, stable: bool | None = False) -> Any:
    """Sorted values and where they came from."""
    dim = as_dim(dim, input.values.ndim)
    order, mask = sorted_positions(input, dim, descending), leading(input.mask, dim)
    kind: Any = torch.return_types.sort
    return kind([Entries(read(input, dim, order), mask), Entries(order, mask)])


def argsort(input: Entries, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Entries:
    """Positions that sort."""
    dim = as_dim(dim, input.values.ndim)
    return Entries(sorted_positions(input, dim, descending), leading(input.mask, dim))


def msort(input: Entries) -> Entries:
    """Values sorted along the first dimension."""
    return sort(input, 0)[0]  # type: ignore[no-any-return]


def extreme(dtype: torch.dtype, largest: bool) -> float | int | bool:
    """The value that torch sorts last (first if not ``largest``): NaN is larger than any number."""
    if dtype.is_floating_point and largest:
        return float("nan")
    return lowest(dtype, not largest)


def same(a: Tensor, b: Tensor) -> Tensor:
    """Equality in which NaN equals NaN."""
    return (a == b) | ((a != a) & (b != b))


def _with_missed(
    chosen: Tensor, input: Entries, filled: Tensor, worst: float | int | bool, dim: int
) -> Tensor:
    """Replace chosen positions that are unspecified by specified entries that tie with the filler, while there are any.

    Only entries equal to the filler can have been passed over, and any of them is as good as another.
    """
    size, slots = size_along(filled, dim), size_along(chosen, dim)
    known = input.mask.gather(dim, chosen)
    taken = torch.zeros_like(filled, dtype=torch.bool).scatter(dim, chosen, True)
    candidates = input.mask & ~taken & same(filled, torch.full_like(filled, worst))
    number = candidates.cumsum(dim)
    # the position of candidate i in slot i; those beyond the last slot share one that is not read
    slot = torch.where(candidates & (number <= slots), number - 1, slots)
    shape = list(chosen.shape)
    shape[dim] = slots + 1
    missed = torch.full(shape, size, device=chosen.device).scatter(dim, slot, positions_along(filled, dim))
    gap = (~known).cumsum(dim) - 1
    replacement = missed.gather(dim, gap.clamp(min=0))
    return torch.where(known | (replacement == size), chosen, replacement)


def topk(input: Entries, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k largest (smallest) specified entries; if there are fewer, the last results are unspecified."""
    values, mask = input
    dim = as_dim(dim, values.ndim)
    worst = extreme(values.dtype, not largest)
    filled = torch.where(mask, values.detach(), worst)
    index = torch.topk(filled, k, dim, largest, sorted).indices
    if values.ndim and k:
        index = _with_missed(index, input, filled, worst, dim)
        index = index.gather(dim, specified_first(mask.gather(dim, index), dim))
    known = mask.gather(dim, index)
    kind: Any = torch.return_types.topk
    return kind([Entries(read(input, dim, index), known), Entries(index, known)])


LAST = "moves with the values, unspecified entries last"
BACK = "moves back with the values"

OPERATIONS = (
    of_rule(sort, "sorting", LAST, BACK),
    of_rule(argsort, "sorting", LAST),
    of_rule(msort, "sorting", LAST, BACK),
    of_rule(topk, "sorting", "specified as far as there were specified entries", BACK),
)
