"""Gradients per sample of one parameter: (B, *shape), or COO (B, V, D) with the rows that each sample looked up."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskgrad import sparse
from maskgrad.gradients.gradient import widened_dtype

__all__ = ["finite", "restricted", "sparse_rows", "squared_norms", "weighted_sum"]


def sparse_rows(samples: Tensor, rows: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return COO gradients of ``shape`` (B, V, D) from values (n, D) at samples and rows (n,), merged in order."""
    at, values = sparse.merge_entries(torch.stack([samples, rows]), values, tuple(shape[:2]))
    return torch.sparse_coo_tensor(at, values, tuple(shape), is_coalesced=True, check_invariants=False)


def squared_norms(gradients: Tensor) -> Tensor:
    """Return the squared 2-norm of each, (B,), in at least float32."""
    if gradients.layout is torch.sparse_coo:
        squares = squared_norms(gradients._values())
        return squares.new_zeros(len(gradients)).index_add_(0, gradients._indices()[0], squares)
    rows = gradients.unsqueeze(-1).flatten(1)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=widened_dtype(rows.dtype))
    return norms.square()


def weighted_sum(gradients: Tensor, weights: Tensor) -> Tensor:
    """Return their sum with ``weights`` (B,), of the parameter's shape; in at least float32, strided or COO."""
    dtype = widened_dtype(gradients.dtype)
    if gradients.layout is torch.sparse_coo:
        (samples, rows), table = gradients._indices(), gradients.shape[1:]
        values = gradients._values().to(dtype) * weights.to(dtype)[samples, None]
        at, values = sparse.merge_entries(rows, values, table[:1])
        return torch.sparse_coo_tensor(at[None], values, table, is_coalesced=True, check_invariants=False)
    return (weights.to(dtype) @ gradients.unsqueeze(-1).flatten(1).to(dtype)).view(gradients.shape[1:])


def finite(gradients: Tensor, samples: Tensor) -> Tensor:
    """Return the same with zeros for what is not finite in ``samples``, Boolean (B,)."""
    if gradients.layout is torch.sparse_coo:
        (of_sample, rows), values = gradients._indices(), gradients._values()
        values = values.masked_fill(samples[of_sample, None] & ~values.isfinite(), 0)
        kept = ~samples[of_sample] | (values != 0).any(1)
        return sparse_rows(of_sample[kept], rows[kept], values[kept], gradients.shape)
    return gradients.masked_fill(samples.view(-1, *[1] * (gradients.dim() - 1)) & ~gradients.isfinite(), 0)


def restricted(gradients: Tensor, mask: Tensor) -> Tensor:
    """Return the same with zeros outside of ``mask``, Boolean, of the parameter's shape."""
    if gradients.layout is torch.sparse_coo:
        (samples, rows), values = gradients._indices(), gradients._values()
        return sparse_rows(samples, rows, torch.where(mask[rows], values, 0), gradients.shape)
    return torch.where(mask, gradients, 0)
