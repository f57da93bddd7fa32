"""Convolutions of one dimension as sums over tables of windows: an oracle that is plain."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["FORWARD", "by_windows", "forward_table", "middles_of"]

FORWARD = [
    {},
    {"padding": 2},
    {"padding": 1, "stride": 2},
    {"padding": 4},  # windows without any data
    {"dilation": 2, "padding": 3},
    {"padding": "same"},
    {"padding": "valid"},
    {"groups": 2, "padding": 1},
    {"stride": 2, "dilation": 2, "groups": 2, "padding": 3},
]


def by_windows(
    x: Tensor,
    x_mask: Tensor,
    w: Tensor,
    w_mask: Tensor,
    groups: int,
    table: Tensor,
    rule: str = "any",
    middles: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``table[position, tap]`` is the place in the data that the tap meets, -1 for none. All of one dimension.

    ``middles[position]`` is the place in the middle of a window.
    """

    def products(data: Tensor, kernel: Tensor) -> Tensor:
        """Of zeros, too; behind the end stands another zero, which is what place -1 reads."""
        taken = F.pad(data, (0, 1))[..., table].unflatten(1, (groups, -1))
        return torch.einsum("ngcpk,gock->ngop", taken, kernel.unflatten(0, (groups, -1))).flatten(1, 2)

    values = products(torch.where(x_mask, x, 0), torch.where(w_mask, w, 0))
    count, every = products(x_mask.to(x), w_mask.to(x)), products(torch.ones_like(x), torch.ones_like(w))
    if rule == "all":
        return values, count == every
    known = (count > 0) | (every == 0)
    if middles is not None:
        there = x_mask.unflatten(1, (groups, -1)).any(2)[..., middles.clamp(0, x.shape[2] - 1)]
        there = there | (middles < 0) | (middles >= x.shape[2])
        known = known & there.repeat_interleave(w.shape[0] // groups, 1)
    return values, known


def forward_table(
    length: int, taps: int, stride: int = 1, padding: Any = 0, dilation: int = 1, **_: Any
) -> Tensor:
    if padding == "same":
        padding = dilation * (taps - 1) // 2
    padding = 0 if padding == "valid" else padding
    positions = (length + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    places = torch.arange(positions)[:, None] * stride + torch.arange(taps) * dilation - padding
    return torch.where((places >= 0) & (places < length), places, -1)


def middles_of(
    length: int, taps: int, stride: int = 1, padding: Any = 0, dilation: int = 1, **_: Any
) -> Tensor:
    """The place in the middle of each window, the first of two."""
    extent = dilation * (taps - 1)
    left, both = {"same": (extent // 2, extent), "valid": (0, 0)}.get(padding) or (padding, 2 * padding)
    positions = (length + both - extent - 1) // stride + 1
    return torch.tensor([p * stride - left + extent // 2 for p in range(positions)])
