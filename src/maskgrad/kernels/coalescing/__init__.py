r"""Merging rows that share an index, in ordinary PyTorch.

.. math:: r_1 < \dots < r_m \text{ the distinct indices}, \qquad
          \text{merged}_k = \operatorname{reduce}\{\, \text{values}_i : \text{indices}_i = r_k \,\}

Sums run in a wider type and are rounded once: half precision in float32 (unlike PyTorch's ``coalesce``: 4096 ones
give 2048 there), float32 in float64 (2**25 ones would stop at 2**24).
"""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_rows
from maskgrad.mode import can_read

REDUCTIONS = ("sum", "mean", "amax", "amin")

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}


def merge_rows(indices: Tensor, values: Tensor, num_rows: int, reduce: str = "sum") -> tuple[Tensor, Tensor]:
    """Merge rows of ``values`` (n, *row) that share an index: distinct ``indices``, ascending (m,), and rows (m, *row).

    ``reduce`` is ``"sum"``, ``"mean"``, ``"amax"`` or ``"amin"``. Sums are rounded once: half precision is merged in
    float32, float32 in float64, integers in int64. Differentiable in ``values`` to any order.
    """
    if reduce not in REDUCTIONS:
        raise ValueError(f"merge_rows(): reduce must be one of {', '.join(REDUCTIONS)}; got {reduce!r}")
    if reduce == "mean" and not (values.is_floating_point() or values.is_complex()):
        raise TypeError(
            f"merge_rows(): reduce='mean' is not defined for {values.dtype}; convert values to a floating-point dtype"
        )
    check_rows(indices, values)
    rows, slots, counts = torch.unique(indices, return_inverse=True, return_counts=True)
    if can_read(rows) and rows.numel() and not 0 <= int(rows[0]) <= int(rows[-1]) < num_rows:
        outside = int(rows[0]) if rows[0] < 0 else int(rows[-1])
        raise IndexError(f"indices must lie in [0, {num_rows}), the rows of the table, but one is {outside}")
    return rows, merge_slots(slots, values, rows.shape[0], counts, reduce)


def merge_slots(slots: Tensor, values: Tensor, num_slots: int, counts: Tensor, reduce: str) -> Tensor:
    """``values`` (n, *row) merged into ``num_slots`` rows; ``slots`` (n,) gives the row of each entry."""
    row = values.shape[1:]
    if reduce in ("amax", "amin"):
        target = slots.view(-1, *(1 for _ in row)).expand_as(values)
        # `start` does not contribute to the result, but scatter_reduce (torch 2.13) counts it among the ties in
        # backward if it equals the extremum: a maximum of 0 would get half its gradient. NaN equals nothing.
        start = values.new_full((num_slots, *row), float("nan") if values.is_floating_point() else 0)
        return start.scatter_reduce(0, target, values, reduce, include_self=False)
    if values.dtype == torch.bool:  # Booleans have no index_add; their sum is "any", as in coalesce
        return merge_slots(slots, values.to(torch.int64), num_slots, counts, reduce) != 0
    wide = values.to(_WIDER.get(values.dtype, values.dtype))
    merged = wide.new_zeros((num_slots, *row)).index_add(0, slots, wide)
    if reduce == "mean":
        merged = merged / counts.view(-1, *(1 for _ in row))
    return merged.to(values.dtype)
