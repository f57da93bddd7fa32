r"""Running sums of the specified entries, in ordinary PyTorch.

.. math:: y_i = m_i \sum_{j \le i} m_j x_j, \qquad \bar x_i = m_i \sum_{j \ge i} m_j \bar y_j

The derivative is the same sum from the other end, and so is the second derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_mask
from maskgrad.kernels.kernel import FLOATS, kernel, like


@kernel("(Tensor values, Tensor mask, int dim, bool reverse) -> Tensor", FLOATS, check=check_mask)
def masked_cumsum(values: Tensor, mask: Tensor, dim: int, reverse: bool = False) -> Tensor:
    """``torch.cumsum`` of the specified entries along ``dim``, from its end with ``reverse``; 0 at the others."""
    known = torch.where(mask, values, 0)
    sums = known.flip(dim).cumsum(dim).flip(dim) if reverse else known.cumsum(dim)
    return torch.where(mask, sums, 0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, mask, ctx.dim, ctx.reverse = inputs
    ctx.save_for_backward(mask)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
    return masked_cumsum(grad, ctx.saved_tensors[0], ctx.dim, not ctx.reverse), None, None, None


masked_cumsum.derive(_save, _backward)
masked_cumsum.fake = like(0)
