"""Convolutions of one dimension as loops over windows: an oracle that is slow and plain."""

from __future__ import annotations

import itertools
from typing import Any

import torch
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
    N, C, _ = x.shape
    outputs = w.shape[0]
    values, known = [], []
    for n, o, position in itertools.product(range(N), range(outputs), range(len(table))):
        products, window = [], 0
        for c, tap in itertools.product(range(C // groups), range(w.shape[2])):
            place, channel = table[position, tap], o // (outputs // groups) * (C // groups) + c
            window += int(place >= 0)
            if place >= 0 and x_mask[n, channel, place] and w_mask[o, c, tap]:
                products.append(x[n, channel, place] * w[o, c, tap])
        values.append(torch.stack(products).sum() if products else torch.zeros((), dtype=x.dtype))
        specified = bool(products) or not window
        if rule == "all":
            specified = len(products) == window
        elif middles is not None and 0 <= middles[position] < x.shape[2]:
            first = o // (outputs // groups) * (C // groups)
            specified &= bool(x_mask[n, first : first + C // groups, middles[position]].any())
        known.append(specified)
    shape = (N, outputs, len(table))
    return torch.stack(values).reshape(shape), torch.tensor(known).reshape(shape)


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
