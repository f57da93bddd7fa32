r"""Vector norms of the specified entries, in ordinary PyTorch.

.. math:: \lVert x \rVert_p = \Bigl(\sum_{i: m_i} |x_i|^p\Bigr)^{1/p}, \qquad
          \lVert x \rVert_\infty = \max_{i: m_i} |x_i|, \qquad \lVert x \rVert_0 = \sum_{i: m_i} [x_i \ne 0]

.. math:: \frac{\partial \lVert x \rVert_1}{\partial x_i} = \operatorname{sgn} x_i, \qquad
          \frac{\partial \lVert x \rVert_2}{\partial x_i} = \frac{x_i}{\lVert x \rVert_2}, \qquad
          \frac{\partial \lVert x \rVert_\infty}{\partial x_i}
          = \frac{\operatorname{sgn} x_i}{k} \ \text{for the}\ k\ \text{entries that attain it}
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.kernel import FLOATS, HALVES, kernel
from maskgrad.kernels.reductions import kept
from maskgrad.kernels.smallest import any_of

__all__ = ["masked_norm", "masked_norm_backward"]

#: The orders that are compiled; the power of a number costs so much that nothing else matters.
ORDERS = (0.0, 1.0, 2.0, math.inf)


@kernel(
    "(Tensor values, Tensor mask, int[] dim, bool keepdim, float ord) -> (Tensor, Tensor)",
    FLOATS,
    min_numel=32_768,
    in_graphs=32_768,
    check=check_mask,
    when=lambda *args: args[4] in ORDERS,
)
def masked_norm(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool, ord: float = 2.0
) -> tuple[Tensor, Tensor]:
    """``torch.linalg.vector_norm`` of the specified entries, and whether there are any (Boolean).

    Where there are none the value is 0, and the gradient exactly 0. ``ord`` is any number but -inf.
    """
    present = any_of(mask, dim, keepdim=True)
    # An entry of 0 takes no part for ord >= 0, one of inf none for ord < 0. A vector of nothing is made a vector of
    # ones, where every norm has finite derivatives.
    neutral = 0.0 if ord >= 0 else math.inf
    safe = torch.where(mask, values, torch.where(present, neutral, 1.0).to(values.dtype))
    if dim or not values.ndim:
        norm = torch.linalg.vector_norm(safe, ord, dim, keepdim=keepdim)
    else:  # of each entry alone; torch would take no dimension for all of them
        norm = torch.linalg.vector_norm(safe.unsqueeze(-1), ord, -1)
    present = present if keepdim or not dim else present.squeeze(dim)
    return torch.where(present, norm, 0), present


@kernel(
    "(Tensor grad, Tensor values, Tensor mask, Tensor norm, float ord) -> Tensor",
    FLOATS,
    min_numel=32_768,
    in_graphs=32_768,
    leading=1,
)
def masked_norm_backward(grad: Tensor, values: Tensor, mask: Tensor, norm: Tensor, ord: float) -> Tensor:
    """The gradient of the values from that of their norm (0, 1, 2 or inf), whose reduced dimensions are kept."""
    dtype = values.dtype
    if dtype in HALVES:
        grad, values, norm = grad.float(), values.float(), norm.float()
    safe = torch.where(mask, values, 0)
    if ord == 0:
        return torch.zeros_like(safe, dtype=dtype)
    if ord == 2:
        flat = norm == 0
        slope = torch.where(flat, 0, grad / torch.where(flat, 1, norm))
        return torch.where(mask, safe * torch.where(mask, slope, 0), 0).to(dtype)
    if ord != 1:
        hits = mask & ((safe.abs() == norm) | (safe.isnan() & norm.isnan()))
        dim = [d for d, (n, k) in enumerate(zip(mask.shape, norm.shape, strict=True)) if n != k]
        ties = hits.sum(dim, keepdim=True) if dim else hits
        mask, grad = hits, grad / ties.clamp(min=1)
    return torch.where(mask, safe.sgn() * torch.where(mask, grad, 0), 0).to(dtype)


def _save_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, mask, ctx.dim, ctx.keepdim, ctx.ord = inputs
    norm, present = output
    ctx.mark_non_differentiable(present)
    ctx.save_for_backward(values, mask, norm)


def _norm_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.ord == 0:
        return (None,) * 5
    values, mask, norm = ctx.saved_tensors
    grad, norm = (kept(x, mask.ndim, ctx.dim, ctx.keepdim) for x in (grad, norm))
    return masked_norm_backward(grad, values, mask, norm, ctx.ord), None, None, None, None


# Measured on 2 cores, in microseconds, reference / compiled, norm over dim 1: of 16,384 values 29 / 44, of 32,768
# 104 / 47, with its gradient 465 / 445.
masked_norm.derive(_save_norm, _norm_backward)
masked_norm_backward.derive_through_reference()
