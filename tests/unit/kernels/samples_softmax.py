"""Calls of the softmax family: operator, arguments, keyword arguments."""

from __future__ import annotations

import torch


def samples():
    values, mask = torch.randn(6, 5, 4, requires_grad=True), torch.rand(6, 5, 4) < 0.5
    grad = torch.randn(6, 5, 4, requires_grad=True)
    soft = torch.ops.maskgrad.masked_softmax(values.detach(), mask, 1, False).requires_grad_()
    logs = torch.ops.maskgrad.masked_softmax(values.detach(), mask, 1, True)
    total = torch.logsumexp(values.detach(), (0, 2), keepdim=True).requires_grad_()
    few = torch.randn(1, 5, 1, requires_grad=True)
    half = values.detach().half()
    return [
        ("masked_softmax", (values, mask, 2, False), {}),
        ("masked_softmax", (values, mask, -2, False), {}),
        ("masked_softmax", (half, mask, 0, True), {}),
        ("masked_softmax_backward", (grad, soft, mask, 1, False), {}),
        ("masked_softmax_backward", (grad.detach(), logs, mask, -1, True), {}),
        ("masked_logsumexp", (values, mask, [0, 2], False), {}),
        ("masked_logsumexp", (half.bfloat16(), mask, [-1], True), {}),
        ("masked_logsumexp_backward", (few, values, total, mask), {}),
        ("masked_logsumexp_backward", (few.detach().half(), half, total.detach().half(), mask), {}),
    ]
