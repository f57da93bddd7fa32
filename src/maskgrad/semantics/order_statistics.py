"""Order statistics: medians, k-th smallest entries, modes and quantiles of the specified entries, sorted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels.smallest import any_of
from maskgrad.semantics.dimensions import as_dim, positions_along
from maskgrad.semantics.entries import Entries, Operand, as_entries, filled, rearranged
from maskgrad.semantics.extrema import shared_by_equals
from maskgrad.semantics.facts import of_rule
from maskgrad.semantics.numbers import REDUCED, Number
from maskgrad.semantics.sorting import read, sorted_positions
from maskgrad.versions import is_before, release

PATTERN = "specified where at least one entry was"
CHOSEN = "to the selected entry"


def _at_rank(input: Entries, dim: int, rank: Tensor) -> Tensor:
    """The position of the entry of this rank among the specified ones."""
    return sorted_positions(input, dim).gather(dim, rank)


def _median_position(input: Entries, dim: int, ignore_nan: bool) -> Tensor:
    values, mask = input
    is_nan = mask & values.isnan()
    count = mask.sum(dim, keepdim=True)
    numbers = count - is_nan.sum(dim, keepdim=True)
    rank = ((numbers if ignore_nan else count) - 1).clamp(min=0) // 2
    if not ignore_nan:  # NaN is sorted last
        rank = torch.where(numbers < count, count - 1, rank)
    return _at_rank(input, dim, rank)


def _median(input: Entries, dim: int | None, keepdim: bool, ignore_nan: bool) -> Any:
    values, mask = input
    torch.median(torch.zeros(1, dtype=values.dtype, device=values.device))  # torch's own check of the dtype
    if dim is not None:
        dim = as_dim(dim, values.ndim)
        kind = torch.return_types.nanmedian if ignore_nan else torch.return_types.median
        if values.ndim and not values.shape[dim]:
            torch.median(values, dim)  # raises
        index = _median_position(input, dim, ignore_nan)
        return _pair(kind, input, index, dim, keepdim)
    if values.numel() == 0:
        return Entries(torch.median(values), mask.any())
    flat = rearranged(input, lambda part: part.reshape(-1))
    index = _median_position(flat, 0, ignore_nan)
    found = read(flat, 0, index)
    if not values.is_floating_point():
        return Entries(found.squeeze(0), mask.any())
    # ties share the gradient, as in torch's full medians
    return Entries(shared_by_equals(flat, found.squeeze(0).detach()), mask.any())


def _pair(
    kind: Any, input: Entries, index: Tensor, dim: int, keepdim: bool, mask: Tensor | None = None
) -> Any:
    """Values and positions, from positions along the kept dimension."""
    if mask is None:
        mask = any_of(input.mask, (dim,), keepdim=True)
    parts = [Entries(part, mask) for part in (read(input, dim, index), index)]
    return kind(parts if keepdim else [rearranged(part, lambda x: x.squeeze(dim)) for part in parts])


def median(input: Entries, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of the specified entries, along a dimension with its position; NaN if one of them is."""
    return _median(input, dim, keepdim, False)


def nanmedian(input: Entries, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of the specified entries that are not NaN; NaN if all specified ones are."""
    return _median(input, dim, keepdim, True)


def kthvalue(input: Entries, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest specified entry and its position; unspecified where there are fewer than k."""
    values, mask = input
    dim = as_dim(dim, values.ndim)
    torch.kthvalue(values.detach(), k, dim)  # torch raises the errors
    index = _at_rank(input, dim, torch.full_like(mask.sum(dim, keepdim=True), k - 1))
    enough = kernels.masked_count(mask, (dim,), True) >= k
    return _pair(torch.return_types.kthvalue, input, index, dim, keepdim, enough)


def mode(input: Entries, dim: int = -1, keepdim: bool = False) -> Any:
    """The most frequent specified entry, the smallest of several, and the position of its last occurrence."""
    values, mask = input
    dim = as_dim(dim, values.ndim)
    if values.ndim == 0:
        return _pair(torch.return_types.mode, input, torch.zeros_like(mask, dtype=torch.int64), dim, keepdim)
    if values.shape[dim] == 0:
        torch.mode(values, dim)  # raises
    order = sorted_positions(input, dim)
    ordered, positions = read(input, dim, order).detach(), positions_along(mask, dim)
    # runs of equals; NaN equals nothing
    begins = (ordered != ordered.roll(1, dim)) | (positions == 0)
    start = torch.where(begins, positions, 0).cummax(dim).values
    length = torch.where(positions < mask.sum(dim, keepdim=True), positions - start + 1, 0)
    index = order.gather(dim, length.argmax(dim, keepdim=True))
    return _pair(torch.return_types.mode, input, index, dim, keepdim)


#: Since 2.14.1 PyTorch does not round ranks such as 0.3 · 5 to the dtype first.
_RANKS_ARE_DOUBLE = not is_before(release(torch.__version__), "2.14.1")


def _interpolated(ordered: Tensor, rank: Tensor, interpolation: str) -> Tensor:
    """Read sorted values (…, n) at fractional ranks (…, q), as torch does."""
    if interpolation == "lower":
        rank = rank.floor()
    elif interpolation == "higher":
        rank = rank.ceil()
    elif interpolation == "nearest":
        rank = rank.round()
    below = rank.detach().to(torch.int64)
    values = ordered.gather(-1, below)
    if interpolation not in ("linear", "midpoint"):
        return values
    weights = torch.full_like(rank, 0.5) if interpolation == "midpoint" else rank - below
    above = ordered.gather(-1, rank.detach().ceil().to(torch.int64))
    return torch.lerp(values, above, weights.to(values.dtype))


def _quantile(
    input: Operand, q: Any, dim: int | None, keepdim: bool, interpolation: str, ignore_nan: bool
) -> Entries:
    values, mask = as_entries(input)
    q_mask, q = q.mask if isinstance(q, Entries) else None, filled(q, 0.5)
    # torch's own checks of dtype, q and interpolation, on a scalar without a vmap dimension
    torch.quantile(torch.zeros(1, dtype=values.dtype, device=values.device), q, interpolation=interpolation)
    if values.numel() == 0:
        raise RuntimeError("quantile() input tensor must be non-empty")
    ndim = values.ndim
    at = as_dim(-1 if dim is None else dim, ndim)
    whole = dim is None or ndim == 0
    rows = Entries(*(part.reshape(-1) if whole else part.movedim(at, -1) for part in (values, mask)))
    known = rows.mask
    if ignore_nan:
        rows = Entries(rows.values, known & ~torch.isnan(rows.values))
    last = rows.values.ndim - 1
    order = sorted_positions(rows, last)
    ordered = read(rows, last, order)
    count = kernels.masked_count(rows.mask, (last,), True)
    end = (count - 1).clamp(min=0)
    points = torch.as_tensor(q, dtype=values.dtype, device=values.device)
    precise = torch.float64 if _RANKS_ARE_DOUBLE and values.device.type != "mps" else values.dtype
    rank = points.reshape(-1).to(precise) * end.to(precise)
    if not ignore_nan:  # NaN sorts last, and any rank reads it
        has_nan = ordered.detach().gather(-1, end).isnan()
        rank = torch.where(has_nan, end.to(precise), rank)
    result = _interpolated(ordered, rank, interpolation)  # (…, q)
    present = any_of(known, (-1,), keepdim=True)
    if ignore_nan:  # only NaN is left
        result = torch.where((count == 0) & present, torch.nan, result)
    pattern = present.expand(result.shape)
    if q_mask is not None:
        pattern = pattern & q_mask.reshape(-1)
    # the dimension of q is first, or removed if q is 0-dim
    parts = [part.movedim(-1, 0) if points.ndim else part.squeeze(-1) for part in (result, pattern)]
    if keepdim:
        lead = list(points.shape)
        shape = [1] * ndim if dim is None else [1 if d == at else size for d, size in enumerate(values.shape)]
        parts = [part.reshape(lead + shape) for part in parts]
    return Entries(parts[0], parts[1])


def quantile(
    input: Entries, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Entries:
    """Quantiles of the specified entries; NaN if one of them is."""
    return _quantile(input, q, dim, keepdim, interpolation, False)


def nanquantile(
    input: Entries, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Entries:
    """Quantiles of the specified entries that are not NaN; NaN if all specified ones are."""
    return _quantile(input, q, dim, keepdim, interpolation, True)


MEDIAN = f"{REDUCED} (integers: masked)"
SHARED = f"{CHOSEN}; without dim shared by those equal to it"
BETWEEN = "to the one or two entries between which the quantile lies"
NUMBER = Number(torch.nan, unless=lambda input, *_, **__: not input.values.is_floating_point())

OPERATIONS = (
    *(
        of_rule(rule, "order_statistics", MEDIAN, SHARED, number=NUMBER, padded="mask")
        for rule in (median, nanmedian)
    ),
    of_rule(kthvalue, "order_statistics", "specified where at least k entries were", CHOSEN, padded="mask"),
    of_rule(mode, "order_statistics", PATTERN, CHOSEN, padded="mask"),
    *(
        of_rule(rule, "order_statistics", f"{PATTERN}, and q", BETWEEN, padded="mask")
        for rule in (quantile, nanquantile)
    ),
)
