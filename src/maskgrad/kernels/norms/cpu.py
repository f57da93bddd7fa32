r"""Vector norms of the specified entries: those of the reductions, of squares, of sizes, of what is not zero.

Nothing is scaled, as nothing is in PyTorch, so squares may overflow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels import norms as family
from maskgrad.kernels.cpu.compiler import formula
from maskgrad.kernels.cpu.lines import line
from maskgrad.kernels.cpu.loops import entrywise, wide, write
from maskgrad.kernels.extrema.cpu import masked_extremum
from maskgrad.kernels.reductions.cpu import sum_of, summing


@formula
def _nonzero(x: Any, zero: Any, one: Any) -> Any:
    return one if x != 0 else zero


@formula
def _size(x: Any, zero: Any, one: Any) -> Any:
    return abs(x)


@formula
def _square(x: Any, zero: Any, one: Any) -> Any:
    return x * x


@formula
def _signed(x: Any, y: Any, share: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    return share if x > 0 else -share if x < 0 else share * 0


_TERMS = {0: summing(_nonzero), 1: summing(_size), 2: summing(_square)}
_SIGNED = entrywise(_signed)


def masked_norm(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, ord: float
) -> tuple[Tensor, Tensor]:
    if ord not in family.ORDERS:
        return family.masked_norm.reference(values, mask, tuple(dim), keepdim, ord)
    if ord == math.inf:
        largest, count = masked_extremum(values, mask, dim, keepdim, True)
        smallest, _ = masked_extremum(values, mask, dim, keepdim, False)
        return torch.where(count > 0, torch.maximum(largest, -smallest), 0), count > 0
    norm, count = sum_of(_TERMS[int(ord)], values.detach(), mask, dim, keepdim)
    return (norm.sqrt() if ord == 2 else norm).to(values.dtype), count > 0


def masked_norm_backward(grad: Tensor, values: Tensor, mask: Tensor, norm: Tensor, ord: float) -> Tensor:
    if ord == 2:
        grad, norm = grad.to(wide(values)), norm.to(wide(values))
        return line(values, mask, None, torch.where(norm == 0, 0, grad / norm))
    if ord == 1:
        return write(_SIGNED, values, None, mask, grad)
    return family.masked_norm_backward.reference(grad, values, mask, norm, ord)
