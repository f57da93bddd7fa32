"""Arguments of the operators that make vector norms."""

from __future__ import annotations

import math

import torch


def samples():
    """Operator, arguments, keyword arguments."""
    values = torch.randn(6, 5, 4, requires_grad=True)
    mask = torch.rand(6, 5, 4) < 0.5
    grad, norm = torch.randn(1, 5, 1), torch.rand(1, 5, 1) + 1
    forward = [
        ("masked_norm", (values, mask, [0, 2], False, 2.0), {}),
        ("masked_norm", (values, mask, [1], True, 1.0), {}),
        ("masked_norm", (values, mask, [0, 1, 2], False, math.inf), {}),
        ("masked_norm", (values.detach().half(), mask, [1], True, 0.0), {}),
        ("masked_norm", (values.detach(), mask, [2], False, 3.0), {}),
    ]
    backward = [
        (
            "masked_norm_backward",
            (grad.clone().requires_grad_(), values, mask, norm.clone().requires_grad_(), p),
            {},
        )
        for p in (1.0, 2.0, math.inf)
    ]
    half = (grad.half(), values.detach().half(), mask, norm.half(), 2.0)
    return [*forward, *backward, ("masked_norm_backward", half, {})]
