r"""Vector norms of the specified entries: those of the reductions, of squares, of sizes, of what is not zero.

Nothing is scaled, as nothing is in PyTorch, so squares may overflow. In a maximum NaN wins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from maskgrad.kernels import norms as family
from maskgrad.kernels.cuda.lines import line
from maskgrad.kernels.extrema.cuda import masked_extremum
from maskgrad.kernels.kernel import HALVES
from maskgrad.kernels.reductions.cuda import reduce


def masked_norm(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, ord: float
) -> tuple[Tensor, Tensor]:
    values = values.detach()
    if ord not in family.ORDERS:
        return family.masked_norm.reference(values, mask, tuple(dim), keepdim, ord)
    if ord == math.inf:
        largest, count = masked_extremum(values, mask, dim, keepdim, True)
        smallest, _ = masked_extremum(values, mask, dim, keepdim, False)
        return torch.where(count > 0, torch.maximum(largest, -smallest), 0), count > 0
    norm, count = reduce(values, mask, dim, keepdim, torch.float64, term=int(ord) or 3)
    return (norm.sqrt() if ord == 2 else norm).to(values.dtype), count > 0


def masked_norm_backward(grad: Tensor, values: Tensor, mask: Tensor, norm: Tensor, ord: float) -> Tensor:
    if ord != 2:
        return family.masked_norm_backward.reference(grad, values, mask, norm, ord)
    values, grad, norm = values.detach(), grad.detach(), norm.detach()
    if values.dtype in HALVES:
        grad, norm = grad.float(), norm.float()
    return line(values, mask, torch.zeros_like(norm), torch.where(norm == 0, 0, grad / norm), None, None)
