"""Rows of sharded tables, with a gradient that goes to the ranks that keep them.

Forward: each rank gathers the rows that the others want; they travel once, however often an index is repeated.
Backward: the gradient of a row is added up here, over all its indices, then travels to the rank that keeps the row,
is added up there over the ranks, and becomes one stored row of a sparse gradient. Halves are added up, and travel,
in float32, and are rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from maskgrad import kernels
from maskgrad.distributed.sharding.agreement import announce, fingerprint
from maskgrad.distributed.sharding.route import Route

__all__ = ["fetch_rows"]


def fetch_rows(
    route: Route,
    weights: list[Tensor],
    *,
    repeated: list[bool],
    paddings: list[int | None],
    average: bool,
) -> tuple[Tensor, ...]:
    """The rows that ``route`` leads to, for each table.

    Args:
        route: what is wanted from where.
        weights: this rank's shard of each table.
        repeated: for each table, a row for each index, (n, *row); else for each distinct one, (m, *row).
        paddings: where in its shard each table has a row that gets no gradient, if it lies here.
        average: divide the gradient by the number of ranks.
    """
    return _Rows.apply(route, repeated, paddings, average, *weights)  # type: ignore[no-any-return,no-untyped-call]


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        route: Route,
        repeated: list[bool],
        paddings: list[int | None],
        average: bool,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.route, ctx.repeated, ctx.paddings, ctx.average = route, repeated, paddings, average
        ctx.shapes, ctx.dtypes = [weight.shape for weight in weights], [weight.dtype for weight in weights]
        ctx.set_materialize_grads(False)
        found = route.fetch(
            [kernels.lookup_rows(weight, rows) for weight, rows in zip(weights, route.rows, strict=True)]
        )
        return tuple(
            kernels.lookup_rows(rows, places) if each_index else rows
            for rows, places, each_index in zip(found, route.places, repeated, strict=True)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        route: Route = ctx.route
        tables = [t for t, needed in enumerate(ctx.needs_input_grad[4:]) if needed]
        if len(grads) > 1:
            # A table whose rows were not used has no gradient, and that on every rank.
            used = [t for t in tables if grads[t] is not None]
            if route.ranks.size > 1:
                numbers = torch.zeros(route.ranks.size, 1, dtype=torch.int64, device=route.rows[0].device)
                announce(
                    route.ranks, numbers, fingerprint("backward", used), None, "gradient of sharded tables"
                )
            tables = used
        gradients: list[Tensor | None] = [None] * len(grads)
        merged = [_by_row(grads[t], ctx, t) for t in tables]
        for t, arrived in zip(tables, route.give_back(merged, tables), strict=True):
            gradients[t] = _sparse(arrived, ctx, t)
        return None, None, None, None, *gradients


def _by_row(grad: Tensor | None, ctx: Any, t: int) -> Tensor:
    """(m, *row): the gradient of each distinct row, in a dtype that can be added up."""
    assert grad is not None  # one table is used, or there would be no backward pass
    if grad.dtype in (torch.float16, torch.bfloat16):
        grad = grad.float()
    if not ctx.repeated[t]:
        return grad
    distinct = sum(ctx.route.wanted[t])
    return kernels.merge_rows(ctx.route.places[t], grad.contiguous(), distinct)[1]


def _sparse(arrived: Tensor, ctx: Any, t: int) -> Tensor:
    """The gradients that have arrived from all ranks, merged, as a sparse gradient of this rank's shard."""
    rows, padding = ctx.route.rows[t], ctx.paddings[t]
    if padding is not None:
        kept = (rows != padding).nonzero().view(-1)
        if len(kept) < len(rows):
            rows, arrived = rows[kept], arrived[kept]
    if ctx.route.ranks.size > 1:
        rows, arrived = kernels.merge_rows(rows, arrived.contiguous(), ctx.shapes[t][0])
        if ctx.average:
            arrived = arrived / ctx.route.ranks.size
    # The indices were checked when they were looked up, and are sorted and distinct now.
    return torch.sparse_coo_tensor(
        rows[None], arrived.to(ctx.dtypes[t]), ctx.shapes[t], check_invariants=False, is_coalesced=True
    )
