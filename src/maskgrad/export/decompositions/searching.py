"""Positions in sorted numbers, by counting what comes before."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["BODIES"]


def searchsorted(
    sorted_sequence: Tensor,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many numbers are smaller, or not larger; each is compared with each."""
    if sorter is not None:
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    if not isinstance(values, Tensor):
        values = torch.tensor(values, dtype=sorted_sequence.dtype, device=sorted_sequence.device)
    right = right or side == "right"
    line: Tensor = sorted_sequence[None, :] if sorted_sequence.ndim == 1 else sorted_sequence[..., None, :]
    if not values.ndim:
        line = line[0]
    sought = values[..., None]
    before = line <= sought if right else line < sought
    if values.is_floating_point():  # NaN comes last
        before = before | torch.isnan(sought)
    found: Tensor = before.reshape(*values.shape, before.shape[-1]).sum(-1)
    return found.to(torch.int32) if out_int32 else found


def bucketize(values: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The same with operands exchanged, one line of boundaries for all values."""
    if not isinstance(values, Tensor):
        values = torch.tensor(values, dtype=boundaries.dtype, device=boundaries.device)
    flat = searchsorted(boundaries, values.flatten(), out_int32=out_int32, right=right)
    return flat.reshape(values.shape)


BODIES = {
    "searchsorted.Tensor searchsorted.Scalar": searchsorted,
    "bucketize.Tensor bucketize.Scalar": bucketize,
}
