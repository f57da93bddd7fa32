"""Arguments of the operators that standardize channels."""

from __future__ import annotations

import torch


def samples():
    """Operator, arguments, keyword arguments."""
    values = torch.randn(6, 5, 4, requires_grad=True)
    mask = torch.rand(6, 5, 4) < 0.5
    mask[:, :, 0] = True
    weight, bias = torch.randn(1, 5, 1, requires_grad=True), torch.randn(1, 5, 1, requires_grad=True)
    count = mask.sum((0, 2), keepdim=True)
    mean, scale = (values.detach() * mask).sum((0, 2), keepdim=True) / count, torch.rand(1, 5, 1) + 1
    grad = torch.randn(6, 5, 4, requires_grad=True)
    half = values.detach().half()
    return [
        ("masked_batch_norm", (values, mask, [0, 2], weight, bias, 1e-5), {}),
        ("masked_batch_norm", (values, mask, [2], weight, None, 1e-3), {}),
        ("masked_batch_norm", (half, mask, [0, 2], None, bias.detach().half(), 1e-3), {}),
        (
            "masked_batch_norm_backward",
            (grad, values, mask, mean, scale, count, [0, 2], weight, [1, 5, 1], 1e-5),
            {},
        ),
        (
            "masked_batch_norm_backward",
            (grad.detach().half(), half, mask, mean, scale, count, [0, 2], None, [1, 5, 1], 1e-5),
            {},
        ),
    ]
