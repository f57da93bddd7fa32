"""Sums, means and counts over the specified entries: one pass over values and mask (``cpu/sums.py``).

Complex values are left to the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels import reductions as family
from maskgrad.kernels.cpu.compiler import formula
from maskgrad.kernels.cpu.memory import empty
from maskgrad.kernels.cpu.sums import pair_loops, sums_of_pairs
from maskgrad.kernels.filling.cpu import select
from maskgrad.kernels.layout import unrepeated
from maskgrad.kernels.reductions import mean_dtype, present, storable, sum_dtype


def masked_count(mask: Tensor, dim: Sequence[int], keepdim: bool) -> Tensor:
    return _sum_and_count(mask, mask, dim, keepdim, torch.int64)[1]


def masked_sum(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    dtype = sum_dtype(values.dtype, dtype)
    if dtype.is_complex:
        return family.masked_sum.reference(values, mask, tuple(dim), keepdim, dtype)
    added, count = _sum_and_count(values, mask, dim, keepdim, dtype)
    return added.to(dtype), present(count, mask, dim, keepdim)


def masked_mean(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    dtype = mean_dtype(values.dtype, dtype)
    if dtype.is_complex:
        return family.masked_mean.reference(values, mask, tuple(dim), keepdim, dtype)
    added, count = _sum_and_count(values, mask, dim, keepdim, dtype)
    return (added / count.clamp(min=1)).to(dtype), count


def masked_expand(grad: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    out = empty(mask.shape, dtype)
    select(out, grad if grad.dtype is dtype else grad.to(dtype), mask, 0)
    return out


def _sum_and_count(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The sum of what is cast to ``dtype``, in float64 or int64, and the number of entries."""
    values, mask, repeats = unrepeated(storable(values, dtype), mask, dim)
    if values.dtype in (torch.int8, torch.int16):
        values = values.to(torch.int32)  # float16 is passed as int16
    wide = torch.float64 if values.is_floating_point() else torch.int64
    added, count = sums_of_pairs(_SUM, values, mask, None, dim, keepdim, (wide, torch.int64))
    return (added * repeats, count * repeats) if repeats > 1 else (added, count)


@formula
def _entry_and_one(x: Any, c: Any, n: Any) -> Any:
    return x, n[1]


_SUM = pair_loops(_entry_and_one)
