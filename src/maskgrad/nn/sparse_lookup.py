"""Looking rows up in one copy, with the sparse gradient of ``F.embedding``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels

__all__ = ["sparse_lookup"]


class _SparseLookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.shape, ctx.padding = weight.shape, padding
        return kernels.lookup_rows(weight, rows.reshape(-1)).view(*rows.shape, *weight.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        rows, values = rows.reshape(-1).long(), grad.reshape(-1, *ctx.shape[1:])
        if ctx.padding is not None:
            kept = (rows != ctx.padding).nonzero().view(-1)
            if len(kept) < len(rows):
                rows, values = rows[kept], values[kept]
        # The indices were checked when they were looked up.
        gradient = torch.sparse_coo_tensor(rows[None], values, ctx.shape, check_invariants=False)
        return gradient, None, None


def sparse_lookup(weight: Tensor, rows: Tensor, padding: int | None) -> Tensor | None:
    """As ``F.embedding(rows, weight, padding, sparse=True)``; None where that is the better way."""
    if not kernels.lookup_rows.is_compiled_for(weight, rows):
        return None
    return _SparseLookup.apply(weight, rows, padding)  # type: ignore[no-any-return,no-untyped-call]
