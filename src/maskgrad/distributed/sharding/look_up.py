"""A lookup in several sharded tables: sends indices and receives rows; backward() sends gradients back.

Forward: each rank gathers the rows that the others request; a row is sent once, for any number of equal indices.
Backward: the gradient of a row is summed here, over all its indices, then sent to the rank with the row,
summed there over the ranks, and becomes one stored row of a sparse gradient. Half precision is added and sent
in float32, and rounded once.

Suffixes: T tables, W ranks; of table t, n indices here, m distinct ones among them, k rows requested from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from maskgrad import kernels
from maskgrad.distributed.agreement import Postponed, exchange_numbers
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.distributed.sharding.table import ShardedTable
from maskgrad.masked_tensor import MaskedTensor, masked

__all__ = ["look_up"]


def look_up(
    tables: Sequence[ShardedTable], indices: Sequence[Any], *, error: Exception | None, what: str
) -> list[tuple[Tensor, Any]]:
    """Return for each table rows (m, *row), and the position among them of each index.

    There is one row per index, in order, if a table is an embedding and its indices are plain, and for
    half precision, whose gradients would be rounded if summed outside. Otherwise one row per distinct index.

    Args:
        tables: tables on the same ranks.
        indices: for each table, of any shape, possibly masked; unspecified ones are not looked up.
        error: a known error of the arguments, if any.
        what: name in errors.

    Returns:
        For each table the rows, and positions among them in the shape of ``indices``, with their mask.
    """
    ranks = tables[0].ranks
    plain: list[Tensor] = []
    if error is None:
        with Postponed() as postponed:
            for position, (table, index) in enumerate(zip(tables, indices, strict=True)):
                name = what if len(tables) == 1 else f"{what}, table {position}"
                plain.append(_checked(index, table, name))
        error = postponed.error
    if error is not None:
        plain = [torch.empty(0, dtype=torch.int64, device=table.weight.device) for table in tables]
    plan = "; ".join(
        f"{table._plan}; {'a' if table.weight.requires_grad and torch.is_grad_enabled() else 'no'} gradient"
        for table in tables
    )
    route = _find_route(ranks, tables, plain, plan, error, what)
    for table, rows in zip(tables, route.rows, strict=True):
        table._ready(rows)
        if table.max_norm is not None and len(rows):
            with torch.no_grad():
                torch.embedding_renorm_(table.weight, rows, table.max_norm, table.norm_type)
        table._looked_up()
    repeated = [
        (table.repeats_rows and not isinstance(index, MaskedTensor))
        or table.weight.dtype in (torch.float16, torch.bfloat16)
        for table, index in zip(tables, indices, strict=True)
    ]
    found = _Rows.apply(route, tables, repeated, *[table.weight for table in tables])  # type: ignore[no-untyped-call]
    places = [
        torch.arange(len(rows), device=rows.device) if each_index else place
        for rows, place, each_index in zip(found, route.places, repeated, strict=True)
    ]
    return [(rows, _shaped(place, index)) for rows, place, index in zip(found, places, indices, strict=True)]


def _checked(index: Any, table: ShardedTable, what: str) -> Tensor:
    """The specified indices (n,), or an error."""
    if not isinstance(index, Tensor | MaskedTensor):
        raise TypeError(f"{what}: indices must be a tensor, got {type(index).__name__}")
    if index.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{what}: indices must be int32 or int64, got {index.dtype}; index.long() converts")
    if index.device != table.weight.device:
        raise ValueError(
            f"{what}: indices are on {index.device}, the table is on {table.weight.device}; indices.to() moves them"
        )
    plain = index.compressed() if isinstance(index, MaskedTensor) else index.reshape(-1)
    if len(plain):
        low, high = torch.stack(torch.aminmax(plain)).tolist()
        if low < 0 or high >= table.num_embeddings:
            place = int(((plain < 0) | (plain >= table.num_embeddings)).nonzero()[0])
            raise IndexError(
                f"{what}: index {int(plain[place])} at position {place} is outside the table "
                f"(expected 0 <= index < {table.num_embeddings}); correct it or enlarge the table"
            )
    return plain


def _shaped(places: Tensor, index: Any) -> Any:
    if not isinstance(index, MaskedTensor):
        return places.view(index.shape)
    mask = index.mask
    whole = torch.zeros(mask.shape, dtype=places.dtype, device=mask.device)
    return masked(whole.masked_scatter(mask, places), mask)


@dataclass(frozen=True)
class _Route:
    """Rows that a lookup in T tables requests from each rank, and rows that others request from here.

    Attributes:
        ranks: the participating ranks.
        wanted: [T][W] number of distinct rows that this rank requests from each.
        served: [T][W] number of rows that each requests from this one.
        rows: for each table, (k,) the positions in this rank's shard of requested rows, by rank.
        places: for each table, (n,) the position of each index among the (m,) received rows.
    """

    ranks: ProcessGroup
    wanted: list[list[int]]
    served: list[list[int]]
    rows: list[Tensor]
    places: list[Tensor]


def _find_route(
    ranks: ProcessGroup,
    tables: Sequence[ShardedTable],
    indices: Sequence[Tensor],
    plan: str,
    error: Exception | None,
    what: str,
) -> _Route:
    """Merge the ``indices`` (n,) of each table, and send each rank the row indices requested from it.

    If there is an ``error`` here or on another rank, every rank raises, and nothing else is sent.
    """
    distinct, places, counts = [], [], []
    for table, index in zip(tables, indices, strict=True):
        merged, inverse = torch.unique(table.placement.physical(index.long()), return_inverse=True)
        ends = table.placement.boundaries(index.device)
        by_rank = torch.searchsorted(merged, ends).diff()
        # Rows are sent as indices within a shard, for which 32 bits suffice unless the shard is huge.
        local = merged - ends[:-1].repeat_interleave(by_rank)
        distinct.append(local.int() if table.placement.largest_shard < 2**31 else local)
        places.append(inverse)
        counts.append(by_rank)
    asked = torch.stack(counts, 1)  # (W, T)
    asking = exchange_numbers(ranks, asked, plan, error, what)
    wanted, served = asked.T.tolist(), asking.T.tolist()
    rows = [row.long() for row in _exchange(ranks, distinct, wanted, served)]
    return _Route(ranks, wanted, served, rows, places)


def _exchange(
    ranks: ProcessGroup, rows: Sequence[Tensor], sent: list[list[int]], received: list[list[int]]
) -> list[Tensor]:
    """All-to-all of the rows of several tables, by rank; one message to each rank and dtype."""
    if ranks.size == 1:
        return list(rows)
    if len(rows) == 1:
        return [ranks.all_to_all(rows[0], sent[0], received[0])]
    arrived: list[Tensor] = [*rows]
    for dtype in dict.fromkeys(part.dtype for part in rows):
        of_dtype = [t for t, part in enumerate(rows) if part.dtype is dtype]
        widths = {t: rows[t].shape[1:].numel() for t in of_dtype}
        by_rank = zip(
            *(rows[t].reshape(-1).split([count * widths[t] for count in sent[t]]) for t in of_dtype),
            strict=True,
        )
        message = torch.cat([part for parts in by_rank for part in parts])
        lengths = [
            [sum(counts[t][rank] * widths[t] for t in of_dtype) for rank in range(ranks.size)]
            for counts in (sent, received)
        ]
        answer = ranks.all_to_all(message, *lengths)
        pieces = answer.split([received[t][rank] * widths[t] for rank in range(ranks.size) for t in of_dtype])
        for place, t in enumerate(of_dtype):
            arrived[t] = torch.cat(pieces[place :: len(of_dtype)]).view(-1, *rows[t].shape[1:])
    return arrived


class _Rows(torch.autograd.Function):
    """The rows of a route: (n, *row) for each table that repeats them, else (m, *row)."""

    @staticmethod
    def forward(
        ctx: Any, route: _Route, tables: Sequence[ShardedTable], repeated: list[bool], *weights: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.route, ctx.repeated, ctx.average = route, repeated, tables[0].gradients == "average"
        ctx.paddings = [table._local_padding for table in tables]
        ctx.shapes, ctx.dtypes = [weight.shape for weight in weights], [weight.dtype for weight in weights]
        ctx.set_materialize_grads(False)
        served = [kernels.lookup_rows(weight, rows) for weight, rows in zip(weights, route.rows, strict=True)]
        found = _exchange(route.ranks, served, route.served, route.wanted)
        return tuple(
            kernels.lookup_rows(rows, places) if each_index else rows
            for rows, places, each_index in zip(found, route.places, repeated, strict=True)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        route: _Route = ctx.route
        tables = [t for t, needed in enumerate(ctx.needs_input_grad[3:]) if needed]
        if len(grads) > 1:
            # A table whose rows were not used has no gradient, on every rank.
            tables = [t for t in tables if grads[t] is not None]
            if route.ranks.size > 1:
                numbers = torch.zeros(route.ranks.size, 1, dtype=torch.int64, device=route.rows[0].device)
                plan = f"gradients of the tables {tables}"
                exchange_numbers(route.ranks, numbers, plan, None, "gradient of sharded tables")
        gradients: list[Tensor | None] = [None] * len(grads)
        merged = [_by_row(grads[t], ctx, t) for t in tables]
        wanted, served = [route.wanted[t] for t in tables], [route.served[t] for t in tables]
        for t, arrived in zip(tables, _exchange(route.ranks, merged, wanted, served), strict=True):
            gradients[t] = _sparse(arrived, ctx, t)
        return None, None, None, *gradients


def _by_row(grad: Tensor | None, ctx: Any, t: int) -> Tensor:
    """(m, *row): the gradient of each distinct row, in a dtype that can be summed."""
    assert grad is not None  # at least one table is used in a backward pass
    if grad.dtype in (torch.float16, torch.bfloat16):
        grad = grad.float()
    if not ctx.repeated[t]:
        return grad
    distinct = sum(ctx.route.wanted[t])
    return kernels.merge_rows(ctx.route.places[t], grad.contiguous(), distinct)[1]


def _sparse(arrived: Tensor, ctx: Any, t: int) -> Tensor:
    """The gradients received from all ranks, merged, as a sparse gradient of this rank's shard."""
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
