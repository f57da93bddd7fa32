"""Arguments of the operators that reduce segments: moments, norms, products, logsumexp."""

from __future__ import annotations

import math

import torch


def samples():
    """Operator, arguments, keyword arguments."""
    entries, vectors = torch.randn(7, requires_grad=True), torch.randn(7, 2, requires_grad=True)
    pointers, order = torch.tensor([0, 2, 2, 7]), torch.randperm(7)
    grad, grads = torch.randn(3, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    mean, means = torch.randn(3, dtype=torch.float64), torch.randn(3, 2, dtype=torch.float64)
    norm, zeros = torch.rand(3) + 0.5, torch.tensor([0, 0, 1])
    plain, halves = entries.detach(), vectors.detach().half()
    return [
        ("segment_mean", (entries, pointers, None), {}),
        ("segment_mean", (vectors, pointers, order), {}),
        ("segment_mean", (halves, pointers, order), {}),
        ("segment_variance", (entries, pointers, None, 0.0), {}),
        ("segment_variance", (vectors, pointers, order, 0.5), {}),
        ("segment_variance", (halves, pointers, order, 0.0), {}),
        ("segment_variance_backward", (grad, entries, mean, pointers, order, 0.5), {}),
        ("segment_variance_backward", (grads.detach(), halves, means, pointers, None, 0.0), {}),
        *[("segment_norm", (entries, pointers, order, p), {}) for p in (0.0, 1.0, 2.0, 3.0)],
        ("segment_norm", (vectors, pointers, None, math.inf), {}),
        ("segment_norm", (halves, pointers, order, -math.inf), {}),
        *[("segment_norm_backward", (grad, entries, norm, pointers, order, p), {}) for p in (1.0, 2.0, 3.0)],
        ("segment_norm_backward", (grads.detach(), halves, grads.detach().abs(), pointers, None, 2.0), {}),
        ("segment_prod", (entries, pointers, None), {}),
        ("segment_prod", (halves, pointers, order), {}),
        ("segment_prod", (torch.arange(7), pointers, order), {}),
        ("segment_prod_backward", (grad.detach(), plain, mean, zeros, pointers, order), {}),
        ("segment_logsumexp", (entries, pointers, None), {}),
        ("segment_logsumexp", (vectors, pointers, order), {}),
        ("segment_logsumexp", (halves, pointers, None), {}),
        ("segment_logsumexp_backward", (grad, entries, mean.float(), pointers, order), {}),
        ("segment_logsumexp_backward", (grads.detach(), halves, means.float(), pointers, None), {}),
    ]
