"""Counts between edges: each point is looked for among the edges, and its weight added to a bin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.export.decompositions.searching import searchsorted

__all__ = ["BODIES"]


def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """The place of a number follows from its distance to the smallest; without a range it is that of the numbers."""
    if not x.is_floating_point():
        return NotImplemented
    x = x.reshape(-1)
    low, high = x.new_full((), min), x.new_full((), max)
    if min == max and x.shape[0]:
        low, high = x.amin(0), x.amax(0)
    same = low == high
    low, high = torch.where(same, low - 1, low), torch.where(same, high + 1, high)
    inside = (x >= low) & (x <= high)
    place = torch.where(inside, (x - low) * bins / (high - low), 0.0).to(torch.int64).clamp(0, bins - 1)
    return x.new_zeros(bins).scatter_add(0, place, inside.to(x.dtype))


def histogram_of_number(
    x: Tensor, bins: int, *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """``bins`` bins of the same width."""
    edges = _edges(x.reshape(-1, 1), [bins], range)
    return _histogram(x.reshape(-1, 1), edges, weight, density), edges[0]


def histogram_of_edges(
    x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """Between the given edges."""
    return _histogram(x.reshape(-1, 1), [bins], weight, density), bins.clone()


def histogramdd(
    x: Tensor, bins: Sequence[int], range: Any = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """In several dimensions, ``bins`` bins of the same width in each."""
    edges = _edges(x, bins, range)
    return _histogram(x, edges, weight, density), edges


def histogramdd_of_one_number(
    x: Tensor, bins: int, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """As many in each dimension."""
    return histogramdd(x, [bins] * x.shape[1], range, weight, density)


def histogramdd_between(
    x: Tensor, bins: Sequence[Tensor], range: Any = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Between the given edges."""
    return _histogram(x, bins, weight, density), [line.clone() for line in bins]


def histogramdd_edges(
    x: Tensor, bins: Sequence[int], *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> list[Tensor]:
    """The edges alone."""
    return _edges(x, bins, range)


def histogramdd_of_numbers(
    x: Tensor, bins: Sequence[int], *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    """A box of bins."""
    return _histogram(x, _edges(x, bins, range), weight, density)


def histogramdd_of_edges(
    x: Tensor, bins: Sequence[Tensor], *, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    """A box between the given edges."""
    return _histogram(x, bins, weight, density)


def _edges(x: Tensor, bins: Sequence[int], range: Any) -> list[Tensor]:
    """From the smallest to the largest number, or as told; if they are the same, half a unit to each side."""
    edges = []
    for at, number in enumerate(bins):
        if range is None:
            low, high = x[:, at].amin(0), x[:, at].amax(0)
        else:
            low, high = (x.new_full((), bound) for bound in range[2 * at : 2 * at + 2])
        same = low == high
        low, high = torch.where(same, low - 0.5, low), torch.where(same, high + 0.5, high)
        steps = torch.arange(number + 1, device=x.device, dtype=x.dtype)
        step = (high - low) / number
        # from both ends, as torch.linspace does it: the last edge is exact
        edges.append(
            torch.where(steps < (number + 1) / 2, low + steps * step, high - (number - steps) * step)
        )
    return edges


def _histogram(x: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    sizes = [line.shape[0] - 1 for line in edges]
    flat = torch.zeros_like(x[:, 0], dtype=torch.int64)
    inside = torch.ones_like(flat, dtype=torch.bool)
    for at, (line, size) in enumerate(zip(edges, sizes, strict=True)):
        column = x[:, at]
        inside = inside & (column >= line[0]) & (column <= line[-1])
        place = searchsorted(line, column, right=True) - 1
        flat = flat * size + place.clamp(0, size - 1)
    weights = torch.ones_like(x[:, 0]) if weight is None else weight.reshape(-1)
    number = 1
    for size in sizes:
        number *= size
    counts = torch.zeros(number, dtype=x.dtype, device=x.device)
    counts = counts.scatter_add(0, torch.where(inside, flat, 0), torch.where(inside, weights, 0.0))
    counts = counts.reshape(sizes)
    if density:
        volume = torch.ones_like(counts)
        for at, line in enumerate(edges):
            volume = volume * (line[1:] - line[:-1]).reshape(-1, *[1] * (len(edges) - at - 1))
        counts = counts / counts.sum() / volume
    return counts


BODIES = {
    "histc": histc,
    "histogramdd": histogramdd,
    "histogramdd.int_bins": histogramdd_of_one_number,
    "histogramdd.TensorList_bins": histogramdd_between,
    "histogram.bin_ct": histogram_of_number,
    "histogram.bins_tensor": histogram_of_edges,
    "_histogramdd_bin_edges": histogramdd_edges,
    "_histogramdd_from_bin_cts": histogramdd_of_numbers,
    "_histogramdd_from_bin_tensors": histogramdd_of_edges,
}
