"""Calls of attention over packed rows: operator, arguments, keyword arguments."""

from __future__ import annotations

from typing import Any

import torch

from maskgrad.kernels import KERNELS


def samples() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    offsets, key_offsets = torch.tensor([0, 3, 3, 8, 9]), torch.tensor([0, 2, 4, 4, 9])
    rows = [torch.randn(9, 2, 4, requires_grad=True) for _ in range(3)]
    halves = [torch.randn(9, 3, 2, 8).bfloat16()[:, i] for i in range(3)]
    wider = [torch.randn(9, 2, size, dtype=torch.float64, requires_grad=True) for size in (4, 4, 3)]
    allowed, added = torch.rand(4, 1, 5, 6) < 0.7, torch.randn(2, 5, 5)
    forward = [
        (*rows, offsets, offsets, 5, 5),
        (*rows, offsets, key_offsets, 5, 5, None, True),
        (*rows, offsets, key_offsets, 5, 6, allowed, False, 0.3),
        (*rows, offsets, offsets, 5, 5, added),
        (*halves, offsets, offsets, 7, 7),
        (*wider, offsets, key_offsets, 5, 5),
    ]
    found: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [("ragged_attention", x, {}) for x in forward]
    for query, key, value, *options in forward:
        output, logsumexp = KERNELS["ragged_attention"].backend("cpu")(query, key, value, *options)
        grad = torch.randn_like(output).requires_grad_(query.requires_grad)
        tensors = (grad, query, key, value, output.detach(), logsumexp.detach())
        found.append(("ragged_attention_backward", (*tensors, *options), {}))
    return found
