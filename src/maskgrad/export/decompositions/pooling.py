"""Pooling by windows that PyTorch's exporter does not know, or divides wrongly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BODIES"]


def avg_pool(rank: int) -> Any:
    """The exporter forgets ``divisor_override``: the mean over padded windows is multiplied back into a sum."""
    pool: Any = F.avg_pool2d if rank == 2 else F.avg_pool3d

    def body(
        x: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        if divisor_override is None:
            return NotImplemented
        kernel = _for_each(kernel_size, rank)
        step = _for_each(stride, rank) if stride else kernel
        pad = _for_each(padding, rank)
        sizes = x.shape[-rank:]
        padded = F.pad(
            x,
            [
                side
                for size, k, s, p in reversed(list(zip(sizes, kernel, step, pad, strict=True)))
                for side in (p, p + _missing(size, k, s, p, ceil_mode))
            ],
        )
        return pool(padded, kernel, step) * (math.prod(kernel) / divisor_override)

    return body


def _for_each(given: Sequence[int], rank: int) -> list[int]:
    return list(given) * rank if len(given) == 1 else list(given)


def _missing(size: Any, kernel: int, step: int, pad: int, ceil_mode: bool) -> Any:
    """How much the last window of ``ceil_mode`` sticks out; windows that begin in the padding behind are left out."""
    if not ceil_mode:
        return 0
    windows = -(-(size + 2 * pad - kernel) // step) + 1
    if (windows - 1) * step >= size + pad:
        windows -= 1
    return max((windows - 1) * step + kernel - size - 2 * pad, 0)


def _windows(size: Any, number: int) -> list[tuple[int, int]]:
    """Where the windows of adaptive pooling begin and end."""
    return [(at * size // number, -(-(at + 1) * size // number)) for at in range(number)]


def adaptive_avg_pool3d(x: Tensor, output_size: Sequence[int]) -> Any:
    """The mean of each window."""
    if not all(isinstance(size, int) for size in x.shape[-3:]):
        return NotImplemented
    for dim, number in zip((-3, -2, -1), output_size, strict=True):
        means = [x.narrow(dim, a, b - a).mean(dim) for a, b in _windows(x.shape[dim], number)]
        x = torch.stack(means, dim)
    return x


def adaptive_max_pool(rank: int) -> Any:
    """The largest entry of each window, and where it is in the tensor read row by row."""

    def body(x: Tensor, output_size: Sequence[int]) -> Any:
        sizes = x.shape[-rank:]
        if not all(isinstance(size, int) for size in sizes):
            return NotImplemented
        places = torch.arange(math.prod(sizes), device=x.device).reshape(sizes)
        for dim, (size, number) in enumerate(zip(sizes, output_size, strict=True), -rank):
            chosen = _window_places(size, number, x.device)
            x, places = x.index_select(dim, chosen), places.index_select(dim, chosen)
        entries, at = _by_window(x, output_size, rank).max(-1)
        places = _by_window(places, output_size, rank)
        return entries, places.expand(*at.shape, -1).gather(-1, at[..., None]).squeeze(-1)

    return body


def _window_places(size: int, number: int, device: torch.device) -> Tensor:
    """Which entries are in each window, its last one again where another window is longer."""
    longest = max([end - begin for begin, end in _windows(size, number)] + [1])
    at = torch.arange(number, device=device)
    begin = torch.div(at * size, number, rounding_mode="floor")
    last = torch.div((at + 1) * size + number - 1, number, rounding_mode="floor") - 1
    inside = begin[:, None] + torch.arange(longest, device=device)
    return torch.minimum(inside, last[:, None]).flatten()


def _by_window(x: Tensor, output_size: Sequence[int], rank: int) -> Tensor:
    """The windows of each dimension behind each other, as (…, *output_size, entries)."""
    batch = x.shape[: x.ndim - rank]
    split = [
        part for size, n in zip(x.shape[-rank:], output_size, strict=True) for part in (n, size // max(n, 1))
    ]
    first = len(batch)
    order = [*range(first), *range(first, first + 2 * rank, 2), *range(first + 1, first + 2 * rank, 2)]
    return x.reshape(*batch, *split).permute(order).flatten(-rank)


BODIES = {
    "avg_pool2d": avg_pool(2),
    "avg_pool3d": avg_pool(3),
    "_adaptive_avg_pool3d adaptive_avg_pool3d": adaptive_avg_pool3d,
    "adaptive_max_pool1d": adaptive_max_pool(1),
    "adaptive_max_pool2d": adaptive_max_pool(2),
    "adaptive_max_pool3d": adaptive_max_pool(3),
}
