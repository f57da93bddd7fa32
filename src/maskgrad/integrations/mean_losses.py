"""Logging losses in trainers: the mean, weighted by the number of entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor

__all__ = ["mean_and_number"]


@torch.no_grad()
def mean_and_number(losses: Any, count: Any = None) -> tuple[Tensor, int]:
    """The mean over specified entries, in at least float32, and their number; (0, 0) if there are none.

    Raises:
        TypeError: ``losses`` is not a tensor.
        ValueError: the number of entries is unknown.
    """
    if isinstance(losses, MaskedTensor):
        number = int(losses.num_specified())
        total = losses.sum(dtype=torch.promote_types(losses.dtype, torch.float32)).detach()
        return total / max(number, 1), number
    if not isinstance(losses, Tensor):
        raise TypeError(f"losses must be a tensor or a MaskedTensor, found {type(losses).__name__}")
    if count is None:
        raise ValueError(
            f"losses are a plain tensor of shape {tuple(losses.shape)}, so how many entries count is unknown: pass "
            "count=, or masked losses"
        )
    number = int(count)
    if not number:
        return torch.zeros((), device=losses.device), 0
    if losses.ndim:
        wide = torch.promote_types(losses.dtype, torch.float32)
        return losses.detach().sum(dtype=wide) / number, number
    return losses.detach(), number
