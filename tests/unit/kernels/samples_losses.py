"""Arguments for the operators of the losses."""

from __future__ import annotations

import math
from typing import Any

import torch

__all__ = ["NUMBERS", "samples"]

#: Name -> kind and numbers of a loss of two tensors.
NUMBERS: dict[str, tuple[str, tuple[float, ...]]] = {
    "mse": ("distance", (1.0, math.inf, 1.0, 0.0)),
    "l1": ("distance", (0.0, 0.0, 1.0, 0.0)),
    "huber": ("distance", (0.5, 0.7, 0.7, 0.245)),
    "smooth_l1": ("distance", (1.0, 0.5, 1.0, 0.25)),
    "logits": ("logits", ()),
    "probabilities": ("probabilities", ()),
}


def samples() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Operator, arguments, keyword arguments."""
    input, target = torch.rand(6, 5, requires_grad=True), torch.rand(6, 5, requires_grad=True)
    mask, grad = torch.rand(6, 5) < 0.5, torch.randn(6, 5, requires_grad=True)
    halves = input.detach().bfloat16(), target.detach().bfloat16()
    labels, logsumexp = torch.randint(5, (6,)), torch.randn(6)
    each = torch.randn(6, requires_grad=True)
    whole = torch.ones(1, dtype=torch.bool).expand(6, 5)
    return [
        *[("masked_loss", (input, target, mask, *NUMBERS[name]), {}) for name in NUMBERS],
        ("masked_loss", (*halves, mask, *NUMBERS["mse"]), {}),
        ("masked_loss", (input.detach().t(), target.detach().t(), mask.t(), *NUMBERS["l1"]), {}),
        *[("masked_loss_sum", (input, target, mask, *NUMBERS[name]), {}) for name in NUMBERS],
        ("masked_loss_sum", (*halves, mask, *NUMBERS["logits"]), {}),
        *[("masked_loss_gradient", (grad, input, target, mask, *NUMBERS[name]), {}) for name in NUMBERS],
        ("masked_loss_gradient", (torch.tensor(2.0), *halves, mask, *NUMBERS["huber"]), {}),
        (
            "masked_loss_gradient",
            (grad.detach().t(), input.detach().t(), target.detach().t(), mask.t(), *NUMBERS["l1"]),
            {},
        ),
        ("masked_cross_entropy", (input, whole, labels, 0.0), {}),
        ("masked_cross_entropy", (input, whole, labels, 0.2), {}),
        ("masked_cross_entropy", (halves[0], whole, labels, 0.0), {}),
        ("masked_cross_entropy", (input.detach()[0], whole[0], labels[0], 0.0), {}),
        ("masked_cross_entropy_gradient", (each, input, whole, labels, logsumexp, 0.0), {}),
        ("masked_cross_entropy_gradient", (each, input, whole, labels, logsumexp, 0.2), {}),
    ]
