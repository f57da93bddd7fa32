"""Histograms: unspecified entries are not counted, and do not widen the range. Counts are specified, zeros too."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.errors import UndefinedOnMaskedError
from maskgrad.semantics.entries import Entries, Operand, as_entries, mask_of, values_of, widened
from maskgrad.semantics.facts import of_rule


def histc(input: Entries, bins: int = 100, min: float = 0, max: float = 0) -> Entries:
    """Number of specified entries in each of ``bins`` equal parts of the range."""
    values, mask = input[0].detach().reshape(-1), input[1].reshape(-1)
    if not values.is_floating_point() or not values.numel():
        return as_entries(torch.histc(values, bins, min, max))
    if min != max:  # torch does not count NaN
        return as_entries(torch.histc(torch.where(mask, values, torch.nan), bins, min, max))
    # The range is that of the data: unspecified entries are replaced by the smallest one, and subtracted there.
    # Half precision could not count them.
    wide = widened(values)
    low = torch.where(mask.any(), torch.where(mask, wide, torch.inf).amin(), 0)
    high = torch.where(mask, wide, -torch.inf).amax()
    counts = torch.histc(torch.where(mask, wide, low), bins)
    # an empty range is widened to both sides
    single = ~mask.any() | (low == high)
    lowest_bin = torch.arange(bins, device=values.device) == torch.where(single, bins // 2, 0)
    return as_entries((counts - torch.where(lowest_bin, (~mask).sum(), 0)).to(values.dtype))


def _check_edges(bins: Any, name: str) -> None:
    parts = bins if type(bins) in (list, tuple) else [bins]
    if any(isinstance(part, Entries) for part in parts):
        raise UndefinedOnMaskedError(
            name,
            "a missing edge leaves its two bins, and the number of bins, undefined",
            "Delete the missing edges first, bins.compressed(), if their neighbours are to be joined.",
        )


def _points(input: Operand, weight: Operand | None, several: bool) -> tuple[Tensor, Tensor]:
    """Points (n + 2, D) and weights (n + 2): weight 0 where one is unspecified, and for two that span the range."""
    values, mask = as_entries(input)[0].detach(), as_entries(input)[1]
    mask = mask.all(-1) if several and values.ndim else mask
    points = values.flatten(0, -2) if several and values.ndim > 1 else values.reshape(-1, 1)
    if values.dtype not in (torch.float32, torch.float64) or (several and values.ndim < 2):
        torch.histogramdd(values if several else points, [1] * points.shape[1])  # raises the error
    weights = values.new_ones(mask.shape) if weight is None else values_of(weight).detach()
    if weights.shape != mask.shape:
        raise RuntimeError(
            f"weight must have the input's shape {tuple(mask.shape)}, found {tuple(weights.shape)}"
        )
    known = mask.reshape(-1, 1) if weight is None else (mask & mask_of(weight)).reshape(-1, 1)
    points, known = torch.cat([points, points.new_zeros(2, points.shape[1])]), F.pad(known, (0, 0, 0, 2))
    low = torch.where(known.any(), torch.where(known, points, torch.inf).amin(0, keepdim=True), 0)
    high = torch.where(known.any(), torch.where(known, points, -torch.inf).amax(0, keepdim=True), 1)
    weights = torch.where(known.squeeze(1), F.pad(weights.reshape(-1), (0, 2)), 0)
    return torch.cat([torch.where(known, points, low)[:-1], high]), weights


def histogram(input: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False) -> Any:
    """Counts, or sums of weights, of the specified entries between edges; an unspecified weight does not count."""
    _check_edges(bins, "histogram()")
    points, total = _points(input, weight, False)
    options = {} if range is None else {"range": range}
    found = torch.histogram(points.squeeze(1), bins, weight=total, density=density, **options)
    kind: Any = torch.return_types.histogram
    return kind([as_entries(part) for part in found])


def histogramdd(input: Any, bins: Any, range: Any = None, weight: Any = None, density: bool = False) -> Any:
    """The same in several dimensions; a point counts if all its coordinates are specified."""
    _check_edges(bins, "histogramdd()")
    points, total = _points(input, weight, True)
    options = {} if range is None else {"range": range}
    hist, edges = torch.histogramdd(points, bins, weight=total, density=density, **options)
    kind: Any = torch.return_types.histogramdd
    return kind([as_entries(hist), tuple([as_entries(edge) for edge in edges])])


def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Entries:
    """Count each integer among the specified entries; the largest determines the length of the result."""
    values, mask = as_entries(input)
    if values.ndim != 1:
        raise RuntimeError(
            f"bincount only supports 1-d non-negative integral inputs, got {values.ndim} dimensions"
        )
    if weights is None:
        return as_entries(torch.bincount(values[mask], minlength=minlength))
    plain = values_of(weights)
    if plain.shape != values.shape:
        raise RuntimeError(
            f"weights should be 1-d and have the same length as input, {len(values)}; got shape {tuple(plain.shape)}"
        )
    mask = mask & mask_of(weights)
    return as_entries(torch.bincount(values[mask], plain.detach()[mask], minlength))


OPERATIONS = tuple(
    of_rule(rule, "histograms", "fully specified", padded="" if rule in (histogram, histogramdd) else "mask")
    for rule in (histc, histogram, histogramdd, bincount)
)
