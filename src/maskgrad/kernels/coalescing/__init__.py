r"""Merging rows that share an index, in ordinary PyTorch.

.. math:: r_1 < \dots < r_m \text{ the distinct indices}, \qquad
          \text{merged}_k = \operatorname{reduce}\{\, \text{values}_i : \text{indices}_i = r_k \,\}

Sums run in a wider type and are rounded once: half precision in float32 (unlike PyTorch's ``coalesce``: 4096 ones
give 2048 there), float32 in float64 (2**25 ones would stop at 2**24).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.checks import check_rows
from maskgrad.kernels.kernel import FLOATS, kernel

REDUCTIONS = ("sum", "mean", "amax", "amin")

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}


def _check(indices: Tensor, values: Tensor, num_rows: int, reduce: str) -> None:
    if reduce not in REDUCTIONS:
        raise ValueError(f"merge_rows(): reduce must be one of {', '.join(REDUCTIONS)}; got {reduce!r}")
    if reduce == "mean" and not (values.is_floating_point() or values.is_complex()):
        raise TypeError(
            f"merge_rows(): reduce='mean' is not defined for {values.dtype}; convert values to a floating-point dtype"
        )
    check_rows(indices, values)


@kernel(
    "(Tensor indices, Tensor values, SymInt num_rows, str reduce) -> (Tensor, Tensor)",
    FLOATS | {torch.int32, torch.int64},
    leading=1,
    check=_check,
)
def merge_rows(indices: Tensor, values: Tensor, num_rows: int, reduce: str = "sum") -> tuple[Tensor, Tensor]:
    """Merge rows of ``values`` (n, *row) that share an index: distinct ``indices``, ascending (m,), and rows (m, *row).

    ``reduce`` is ``"sum"``, ``"mean"``, ``"amax"`` or ``"amin"``. Sums are rounded once: half precision is merged in
    float32, float32 in float64, integers in int64. Deterministic; differentiable in ``values`` to any order.
    """
    rows, slots, counts = torch.unique(indices, return_inverse=True, return_counts=True)
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


def merge_backward(
    grad: Tensor, indices: Tensor, rows: Tensor, values: Tensor, merged: Tensor, reduce: str
) -> Tensor:
    """The gradient of the merged values, passed on to each entry; shared among ties, as in ``torch.amax``."""
    slots = torch.searchsorted(rows, indices)
    spread = grad.index_select(0, slots)
    if reduce == "sum":
        return spread
    if reduce == "mean":
        counts = torch.bincount(slots, minlength=rows.shape[0]).view(-1, *(1 for _ in values.shape[1:]))
        return (spread / counts.index_select(0, slots)).to(values.dtype)
    best = merged.index_select(0, slots)
    hit = (values == best) | (values.isnan() & best.isnan())
    ties = torch.zeros(merged.shape, dtype=torch.int64, device=values.device).index_add(
        0, slots, hit.to(torch.int64)
    )
    return (spread / ties.index_select(0, slots)).masked_fill(~hit, 0).to(values.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    indices, values, _, ctx.reduce = inputs
    ctx.save_for_backward(indices, values, *output)
    ctx.mark_non_differentiable(output[0])


def _backward(ctx: Any, _: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
    indices, values, rows, merged = ctx.saved_tensors
    return None, merge_backward(grad, indices, rows, values.detach(), merged.detach(), ctx.reduce), None, None


merge_rows.derive(_save, _backward)
