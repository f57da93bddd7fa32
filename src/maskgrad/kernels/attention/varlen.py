"""Attention over packed rows by ``torch.nn.attention.varlen``, FlashAttention for sequences of different lengths.

Half precision on CUDA devices only, first derivatives only. Where there is no GPU, the tests replace the function and
check the arguments that it is given.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from maskgrad.kernels.attention.differentiable import differentiable, is_transformed_by_function
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.selection import reference_is_forced
from maskgrad.mode import mode

#: FlashAttention requires head sizes that are a multiple of the first number and at most the second
_HEAD_MULTIPLE, _LARGEST_HEAD = 8, 256


def fits_varlen(
    query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor, attn_mask: Tensor | None
) -> bool:  # fmt: skip
    """Return whether rows are supported: one set of sequences only, as the causal order ends where the keys end."""
    size = query.shape[2]
    return (
        query.dtype in HALVES
        and attn_mask is None
        and query_offsets is key_offsets
        and value.shape[2] == size
        and size % _HEAD_MULTIPLE == 0
        and size <= _LARGEST_HEAD
        and not (reference_is_forced() or mode() == "export" or is_transformed_by_function())
        and _is_there(query.device)
    )


def _is_there(device: torch.device) -> bool:
    """Return whether FlashAttention exists: builds for Windows, PyTorch before 2.10 and old devices may lack it."""
    return (
        torch.backends.cuda.is_flash_attention_available()
        and importlib.util.find_spec("torch.nn.attention.varlen") is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def varlen_attention(
    formula: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, longest: int,
    is_causal: bool, scale: float | None,
) -> Tensor:  # fmt: skip
    """Attention of rows (N, H, E) in their sequences; ``formula`` computes the same with all derivatives."""
    from torch.nn.attention.varlen import varlen_attn

    short = offsets.to(torch.int32)
    # no window to the right of the query: the causal order
    window = (-1, 0 if is_causal else -1)
    result = varlen_attn(query, key, value, short, short, longest, longest, scale=scale, window_size=window)
    assert isinstance(result, Tensor)  # not a pair, as no further results were requested
    if not (result.requires_grad and mode() == "eager"):
        return result
    inputs = (query, key, value, offsets, offsets, longest, longest, None, is_causal, scale)
    return differentiable(result, formula, *inputs)
