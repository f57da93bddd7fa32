"""Arguments of the operators that make variances."""

from __future__ import annotations

import torch


def samples():
    """Operator, arguments, keyword arguments."""
    values = torch.randn(6, 5, 4, requires_grad=True)
    mask = torch.rand(6, 5, 4) < 0.5
    mask[:, :2] = True
    count = mask.sum((0, 2), keepdim=True)
    mean = (values.detach() * mask).sum((0, 2), keepdim=True) / count
    grad = torch.randn(1, 5, 1, requires_grad=True)
    return [
        ("masked_variance", (values, mask, [0, 2], False, 1.0), {}),
        ("masked_variance", (values, mask, [0, 1, 2], True, 0.0), {}),
        ("masked_variance", (values.detach().half(), mask, [1], True, 0.5), {}),
        ("masked_variance_backward", (grad, values, mask, mean, count, [0, 2], 0.5), {}),
        (
            "masked_variance_backward",
            (grad.detach(), values.detach().bfloat16(), mask, mean, count, [0, 2], 0.0),
            {},
        ),
    ]
