"""Arguments of the operators that standardize."""

from __future__ import annotations

import torch


def samples():
    """Operator, arguments, keyword arguments."""
    values = torch.randn(6, 5, 4, requires_grad=True)
    mask = torch.rand(6, 5, 4) < 0.5
    mask[:, 0] = True
    weight, bias = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    matrix = torch.randn(5, 4, requires_grad=True)
    count = mask.sum((1, 2), keepdim=True)
    mean = (values.detach() * mask).sum((1, 2), keepdim=True) / count
    scale = torch.rand(6, 1, 1) + 1
    return [
        ("masked_layer_norm", (values, mask, 1, weight, bias, 1e-5, True), {}),
        ("masked_layer_norm", (values, mask, 2, matrix, None, 1e-3, False), {}),
        ("masked_layer_norm", (values.detach().half(), mask, 1, None, bias.detach().half(), 1e-3, True), {}),
        (
            "masked_layer_norm_backward",
            (
                torch.randn(6, 5, 4, requires_grad=True),
                values,
                mask,
                mean,
                scale,
                count,
                2,
                matrix,
                1e-5,
                True,
            ),
            {},
        ),
        (
            "masked_layer_norm_backward",
            (
                torch.randn(6, 5, 4).half(),
                values.detach().half(),
                mask,
                mean,
                scale,
                count,
                2,
                None,
                1e-5,
                False,
            ),
            {},
        ),
    ]
