"""Sorting, positions in sorted values, and histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["BODIES"]


def sort(
    x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Sort with ONNX's TopK of all entries, which is stable; it does not define the order of NaN."""
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    order = _order(x, dim, descending)
    return x.gather(dim, order), order


def _order(x: Tensor, dim: int, descending: bool) -> Tensor:
    size = x.shape[dim]
    if not x.is_floating_point():
        # the two integer types that ONNX Runtime sorts
        keys = x if x.dtype in (torch.int32, torch.int64) else x.to(torch.int64)
        return torch.topk(keys, size, dim, descending)[1]
    nothing = torch.isnan(x)
    order = torch.topk(torch.where(nothing, float("inf"), x), size, dim, descending)[1]
    again = torch.topk(nothing.gather(dim, order).to(torch.int32), size, dim, descending)[1]
    return order.gather(dim, again)


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th entry of a sorted line."""
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    values, order = sort(x, dim)
    values, order = values.narrow(dim, k - 1, 1), order.narrow(dim, k - 1, 1)
    return (values, order) if keepdim else (values.squeeze(dim), order.squeeze(dim))


def median(x: Tensor, dim: int, keepdim: bool = False, *, ignore_nan: bool = False) -> tuple[Tensor, Tensor]:
    """The lower one of the two in the middle; NaN if there is one, unless NaN is ignored."""
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    values, order = sort(x, dim)
    size = x.shape[dim]
    at = torch.zeros_like(order.narrow(dim, 0, 1)) + (size - 1) // 2
    if x.is_floating_point():
        numbers = size - torch.isnan(x).sum(dim, keepdim=True)
        if ignore_nan:
            at = torch.div((numbers - 1).clamp(min=0), 2, rounding_mode="floor")
        else:
            at = torch.where(numbers < size, numbers, at)
    values, order = values.gather(dim, at), order.gather(dim, at)
    return (values, order) if keepdim else (values.squeeze(dim), order.squeeze(dim))


def searchsorted(
    sorted_sequence: Tensor,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Count smaller (or not larger) values by comparing all pairs."""
    if sorter is not None:
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    if not isinstance(values, Tensor):
        values = torch.tensor(values, dtype=sorted_sequence.dtype, device=sorted_sequence.device)
    right = right or side == "right"
    line: Tensor = sorted_sequence[None, :] if sorted_sequence.ndim == 1 else sorted_sequence[..., None, :]
    if not values.ndim:
        line = line[0]
    sought = values[..., None]
    before = line <= sought if right else line < sought
    if values.is_floating_point():  # NaN is last
        before = before | torch.isnan(sought)
    found: Tensor = before.reshape(*values.shape, before.shape[-1]).sum(-1)
    return found.to(torch.int32) if out_int32 else found


def bucketize(values: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The same with operands exchanged, one line of boundaries for all values."""
    if not isinstance(values, Tensor):
        values = torch.tensor(values, dtype=boundaries.dtype, device=boundaries.device)
    flat = searchsorted(boundaries, values.flatten(), out_int32=out_int32, right=right)
    return flat.reshape(values.shape)


def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Compute bins from the distance to the smallest value; the default range is that of the values."""
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


def histogramdd(
    x: Tensor, bins: Any, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Points (n, dimensions): ``bins`` is the number of bins, a number for each dimension, or edges for each."""
    edges = _edges(x, [bins] * x.shape[1] if isinstance(bins, int) else bins, range)
    return _counts(x, edges, weight, density), edges


def histogram(
    x: Tensor, bins: Any, *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    """Scalars: ``bins`` is a number of bins, or edges."""
    counts, (edges,) = histogramdd(x.reshape(-1, 1), [bins], range, weight, density)
    return counts, edges


def _edges(x: Tensor, bins: Sequence[Any], range: Any) -> list[Tensor]:
    """From the smallest to the largest value, or over ``range``; half a unit to each side if these are equal."""
    edges = []
    for at, number in enumerate(bins):
        if isinstance(number, Tensor):
            edges.append(number.clone())
            continue
        if range is None:
            low, high = x[:, at].amin(0), x[:, at].amax(0)
        else:
            low, high = (x.new_full((), bound) for bound in range[2 * at : 2 * at + 2])
        same = low == high
        low, high = torch.where(same, low - 0.5, low), torch.where(same, high + 0.5, high)
        steps = torch.arange(number + 1, device=x.device, dtype=x.dtype)
        step = (high - low) / number
        # from both ends, as in torch.linspace: the last edge is exact
        edges.append(
            torch.where(steps < (number + 1) / 2, low + steps * step, high - (number - steps) * step)
        )
    return edges


def _counts(x: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool) -> Tensor:
    sizes = [line.shape[0] - 1 for line in edges]
    flat = torch.zeros_like(x[:, 0], dtype=torch.int64)
    inside = torch.ones_like(flat, dtype=torch.bool)
    for at, (line, size) in enumerate(zip(edges, sizes, strict=True)):
        column = x[:, at]
        inside = inside & (column >= line[0]) & (column <= line[-1])
        place = searchsorted(line, column, right=True) - 1
        flat = flat * size + place.clamp(0, size - 1)
    weights = torch.ones_like(x[:, 0]) if weight is None else weight.reshape(-1)
    counts = torch.zeros(math.prod(sizes), dtype=x.dtype, device=x.device)
    counts = counts.scatter_add(0, torch.where(inside, flat, 0), torch.where(inside, weights, 0.0))
    counts = counts.reshape(sizes)
    if density:
        volume = torch.ones_like(counts)
        for at, line in enumerate(edges):
            volume = volume * (line[1:] - line[:-1]).reshape(-1, *[1] * (len(edges) - at - 1))
        counts = counts / counts.sum() / volume
    return counts


BODIES = {
    "sort sort.stable": sort,
    "argsort argsort.stable": lambda *args, **options: sort(*args, **options)[1],
    "msort": lambda x: sort(x, 0)[0],
    "kthvalue": kthvalue,
    "median.dim": median,
    "nanmedian.dim": lambda *args, **options: median(*args, **options, ignore_nan=True),
    "median": lambda x: median(x.flatten(), 0)[0],
    "nanmedian": lambda x: median(x.flatten(), 0, ignore_nan=True)[0],
    "searchsorted.Tensor searchsorted.Scalar": searchsorted,
    "bucketize.Tensor bucketize.Scalar": bucketize,
    "histc": histc,
    "histogram.bin_ct histogram.bins_tensor": histogram,
    "histogramdd histogramdd.int_bins histogramdd.TensorList_bins": histogramdd,
    "_histogramdd_bin_edges": lambda *args, **options: histogramdd(*args, **options)[1],
    "_histogramdd_from_bin_cts _histogramdd_from_bin_tensors": (
        lambda *args, **options: histogramdd(*args, **options)[0]
    ),
}
