"""Calls of the product: operator, arguments, keyword arguments."""

from __future__ import annotations

import torch


def samples():
    values, mask = torch.randn(6, 5, 4, requires_grad=True), torch.rand(6, 5, 4) < 0.5
    plain, grad = values.detach(), torch.randn(1, 5, 1)
    rest, zeros = torch.randn(1, 5, 1), torch.tensor([0, 1, 2, 0, 1]).view(1, 5, 1)
    return [
        ("masked_prod", (values, mask, [0, 2], False), {}),
        ("masked_prod", (plain.bfloat16(), mask, [1], True), {}),
        ("masked_prod", (torch.arange(120).view(6, 5, 4), mask, [-1], True), {}),
        ("masked_prod_backward", (grad, plain, rest, zeros, mask), {}),
        ("masked_prod_backward", (grad.half(), plain.half(), rest, zeros, mask), {}),
    ]
