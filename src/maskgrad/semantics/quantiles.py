"""Quantiles of the specified entries, in all of torch's interpolations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad import kernels
from maskgrad.kernels.smallest import any_of
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries, mask_of
from maskgrad.semantics.facts import of_rule
from maskgrad.semantics.sorting import read, sorted_positions
from maskgrad.versions import is_before

if TYPE_CHECKING:
    from torch import Tensor


#: Since 2.14.1 PyTorch finds 0.3 · 5 between two entries without rounding it to their dtype first.
_RANKS_ARE_DOUBLE = not is_before(torch.__version__, "2.14.1")


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
    input: Entries | Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, ignore_nan: bool
) -> Entries:
    values, mask = input if isinstance(input, Entries) else (input, mask_of(input))
    q_mask = None
    if isinstance(q, Entries):
        q_mask, q = q.mask, torch.where(q.mask, q.values, 0.5)
    # torch's own checks of dtype, q and interpolation, on one number that no vmap has batched
    torch.quantile(torch.zeros(1, dtype=values.dtype, device=values.device), q, interpolation=interpolation)
    if values.numel() == 0:
        raise RuntimeError("quantile() input tensor must be non-empty")
    ndim = values.ndim
    at = as_dim(-1 if dim is None else dim, ndim)
    if dim is None or ndim == 0:
        rows = Entries(values.reshape(-1), mask.reshape(-1))
    else:
        rows = Entries(values.movedim(at, -1), mask.movedim(at, -1))
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
    if ignore_nan:  # nothing but NaN is left
        result = torch.where((count == 0) & present, torch.nan, result)
    pattern = present.expand(result.shape)
    if q_mask is not None:
        pattern = pattern & q_mask.reshape(-1)
    # the dimension of q comes first, or goes if q has none
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


PATTERN = "specified where at least one entry was, and q"
GRADIENT = "to the one or two entries between which the quantile lies"

OPERATIONS = tuple(of_rule(rule, "order_statistics", PATTERN, GRADIENT) for rule in (quantile, nanquantile))
