"""Calls of the extrema: operator, arguments, keyword arguments."""

from __future__ import annotations

import torch


def samples():
    values, mask = torch.randn(6, 5, 4, requires_grad=True), torch.rand(6, 5, 4) < 0.5
    best, share = values.detach().amax((0, 2), keepdim=True), torch.randn(1, 5, 1, requires_grad=True)
    return [
        ("masked_extremum", (values, mask, [0, 2], False, True), {}),
        ("masked_extremum", (values.detach().bfloat16(), mask, [1], True, False), {}),
        ("masked_extremum", (torch.arange(120).view(6, 5, 4), mask, [-1], True, True), {}),
        ("masked_extremum_spread", (share, values.detach(), best, mask), {}),
        ("masked_extremum_spread", (share.detach().half(), values.detach().half(), best.half(), mask), {}),
        ("masked_position", (values.detach(), mask, 1, False, True), {}),
        ("masked_position", (torch.arange(120).view(6, 5, 4), mask, 0, True, False), {}),
    ]
