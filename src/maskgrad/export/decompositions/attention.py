"""Attention in elementary steps: the same in every opset, and 0 for a query that may look at no key."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["BODIES"]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(Q Kᵀ · scale + mask) V, where a row without keys is zero as it is in PyTorch, not NaN or a mean."""
    if dropout_p:
        return NotImplemented
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    size = query.shape[-1]
    factor = 1.0 / math.sqrt(size) if scale is None else scale
    scores = torch.matmul(query * factor, key.transpose(-2, -1))
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device)[:, None]
        allowed = rows >= torch.arange(key.shape[-2], device=query.device)[None, :]
    elif attn_mask is None:
        return torch.matmul(torch.softmax(scores, -1), value)
    elif attn_mask.dtype == torch.bool:
        allowed = attn_mask
    else:
        scores = scores + attn_mask
        allowed = scores != float("-inf")
    scores = torch.where(allowed, scores, float("-inf"))
    largest = scores.amax(-1, keepdim=True)
    powers = torch.exp(scores - torch.where(largest == float("-inf"), 0.0, largest))
    total = powers.sum(-1, keepdim=True)
    weights = powers / torch.where(total == 0, 1.0, total)
    return torch.matmul(weights.to(value.dtype), value)


def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax of which a row of −∞ is zero."""
    x = x if dtype is None else x.to(dtype)
    largest = x.amax(dim, keepdim=True)
    powers = torch.exp(x - torch.where(largest == float("-inf"), 0.0, largest))
    total = powers.sum(dim, keepdim=True)
    return powers / torch.where(total == 0, 1.0, total)


BODIES = {"scaled_dot_product_attention": scaled_dot_product_attention, "_safe_softmax": safe_softmax}
