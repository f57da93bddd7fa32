"""Shapes, dimensions and layouts in memory that every reduction is tried on."""

from __future__ import annotations

import torch

SHAPES_AND_DIMS = [
    ((), ()),
    ((), (0,)),
    ((), (-1,)),
    ((7,), (0,)),
    ((1,), (0,)),
    ((5, 3), (0,)),
    ((5, 3), (1,)),
    ((5, 3), (0, 1)),
    ((5, 3), ()),
    ((2, 3, 5), (1,)),
    ((2, 3, 5), (0, 2)),
    ((2, 3, 5), (-1, 0)),
    ((2, 3, 2, 3), (0, 2)),
    ((2, 3, 2, 3), (1, 3)),
    ((1, 3, 1, 2), (0, 2)),
    ((0,), (0,)),
    ((0, 3), (0,)),
    ((0, 3), (1,)),
    ((3, 0, 2), (1, 2)),
]


def layouts():
    """Name -> values and mask of shape (6, 70, 5), or so, in every kind of layout."""
    values, mask = torch.randn(6, 70, 5), torch.rand(6, 70, 5) < 0.5
    expanded = (torch.rand(6, 70, 1) < 0.5).expand(6, 70, 5)
    return {
        "contiguous": (values, mask),
        "permuted together": (values.permute(2, 0, 1), mask.permute(2, 0, 1)),
        "values permuted": (torch.randn(5, 70, 6).permute(2, 1, 0), mask),
        "mask permuted": (values, (torch.rand(5, 70, 6) < 0.5).permute(2, 1, 0)),
        "sliced": (torch.randn(6, 70, 10)[:, :, ::2], mask),
        "sliced rows": (torch.randn(6, 80, 5)[:, 3:73], (torch.rand(7, 70, 5) < 0.5)[1:]),
        "expanded values": (torch.randn(6, 1, 5).expand(6, 70, 5), mask),
        "token mask": (values, expanded),
        "feature mask": (values, (torch.rand(5) < 0.5).expand(6, 70, 5)),
        "head mask": (torch.randn(2, 3, 70, 5), (torch.rand(2, 1, 1, 5) < 0.5).expand(2, 3, 70, 5)),
        "query mask": (torch.randn(2, 3, 7, 50), (torch.rand(2, 1, 7, 50) < 0.5).expand(2, 3, 7, 50)),
        "scalar mask": (values, torch.tensor(True).expand(6, 70, 5)),
        "channels last": (
            torch.randn(2, 3, 20, 5).to(memory_format=torch.channels_last),
            torch.rand(2, 3, 20, 5) < 0.5,
        ),
        "offset": (torch.randn(2101)[1:].view(6, 70, 5), mask),
    }
