"""Products and extrema from the beginning up to each entry.

Doubling: after k rounds each entry sums up the 2ᵏ entries that end there. Where the size is not known when the graph is
made, each result is taken by itself, over a triangle.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["BODIES"]

Combine = Callable[[Tensor, Tensor], Tensor]
Reduce = Callable[[Tensor], Tensor]


def _scan(x: Tensor, dim: int, combine: Combine, reduce: Reduce, neutral: float) -> Tensor:
    x, size = x.movedim(dim, -1), x.shape[dim]
    if isinstance(size, int):
        reach = 1
        while reach < size:
            before = torch.full_like(x[..., :reach], neutral)
            x = combine(x, torch.cat([before, x[..., :-reach]], -1))
            reach *= 2
    else:
        places = torch.arange(size, device=x.device)
        rest = torch.full((), neutral, dtype=x.dtype, device=x.device)
        x = reduce(torch.where(places[:, None] >= places, x[..., None, :], rest))
    return x.movedim(-1, dim)


def cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Products."""
    if dtype is None:
        dtype = x.dtype if x.is_floating_point() else torch.int64
    x = x.to(dtype)
    return _scan(x, dim, torch.mul, lambda rows: rows.prod(-1), 1) if x.ndim else x.clone()


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Powers 0, 1, … of each entry, which are products of its copies."""
    number = x.shape[-1] if N is None else N
    copies = x[..., None].expand(*x.shape, number - 1)
    return torch.cat([torch.ones_like(x[..., None]), cumprod(copies, -1)], -1)


def cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Largest entries, and where each was seen last."""
    return _extremum(x, dim, torch.maximum, lambda rows: rows.amax(-1), _least(x.dtype))


def cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Smallest entries, and where each was seen last."""
    return _extremum(x, dim, torch.minimum, lambda rows: rows.amin(-1), _largest(x.dtype))


def _extremum(x: Tensor, dim: int, combine: Combine, reduce: Reduce, neutral: float) -> tuple[Tensor, Tensor]:
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    values = _scan(x, dim, combine, reduce, neutral)
    is_it = x == values
    if x.is_floating_point():
        is_it = is_it | (torch.isnan(x) & torch.isnan(values))
    shape = [1] * x.ndim
    shape[dim] = -1
    places = torch.arange(x.shape[dim], device=x.device).reshape(shape)
    seen = torch.where(is_it, places, 0)
    return values, _scan(seen, dim, torch.maximum, lambda rows: rows.amax(-1), 0)


def _least(dtype: torch.dtype) -> float:
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _largest(dtype: torch.dtype) -> float:
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


BODIES = {"cumprod": cumprod, "linalg_vander": vander, "cummax": cummax, "cummin": cummin}
