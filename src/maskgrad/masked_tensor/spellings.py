"""Functions of PyTorch for sparse or quantized tensors, mapped to equivalent functions on MaskedTensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.masked_tensor.creation import masked
from maskgrad.masked_tensor.storage import from_sparse

__all__ = ["SPELLINGS"]


def _mm(input: Any, mat: Any, reduce: str = "sum") -> Any:
    if reduce == "sum":
        return input @ mat
    if reduce not in ("mean", "amax", "amin"):
        raise ValueError(f"torch.sparse.mm: reduce must be sum, mean, amax or amin, found {reduce!r}")
    products = input.unsqueeze(-1) * mat.unsqueeze(-3)
    return getattr(products, reduce)(-2)


def _addmm(mat: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return torch.addmm(mat, mat1, mat2, beta=beta, alpha=alpha)


def _sampled_addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """Compute ``addmm`` where ``input`` has entries, also if beta = 0 ignores their values."""
    if isinstance(input, Tensor):
        input = from_sparse(input)
    sampled = _sparse_mask(alpha * (mat1 @ mat2), input)
    return sampled if beta == 0 else sampled + beta * input


def _sparse_mask(input: Any, mask: Any) -> Any:
    """Return the entries of ``input`` at the indices of ``mask``, in its layout."""
    if isinstance(mask, Tensor):
        mask = from_sparse(mask)
    return input * torch.ones_like(mask, dtype=input.dtype)


def _quantized(operator: Callable[..., Tensor]) -> Callable[..., Any]:
    """Apply a linear layer with quantized weights; zero is exact, and within every range of activations."""

    def linear(x: Any, *args: Any, **kwargs: Any) -> Any:
        found = masked(operator(x.filled(0), *args, **kwargs), x.mask.any(-1, keepdim=True))
        return found.to_jagged() if x.layout is torch.jagged else found

    return linear


_QUANTIZED = ("linear_dynamic", "linear_relu_dynamic", "linear_dynamic_fp16", "linear_relu_dynamic_fp16")

SPELLINGS: dict[Any, Callable[..., Any]] = {
    torch.is_nonzero: bool,
    Tensor.is_nonzero: bool,
    torch.sparse.mm: _mm,
    torch.smm: _mm,
    Tensor.smm: _mm,
    torch.hspmm: _mm,
    torch._sparse_sum: torch.sum,
    torch.sparse.softmax: torch.softmax,
    torch.sparse.log_softmax: torch.log_softmax,
    torch.sparse.addmm: _addmm,
    torch.sspaddmm: _addmm,
    Tensor.sspaddmm: _addmm,
    torch.sparse.sampled_addmm: _sampled_addmm,
    Tensor.sparse_mask: _sparse_mask,
    **{
        operator: _quantized(operator)
        for name in _QUANTIZED
        if (operator := getattr(torch.ops.quantized, name, None))
    },
}
