"""One look-up in several sharded tables: indices go out, rows come back, in one exchange each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from maskgrad.distributed.sharding.agreement import fingerprint
from maskgrad.distributed.sharding.route import find_route
from maskgrad.distributed.sharding.rows import fetch_rows
from maskgrad.distributed.sharding.table import ShardedTable
from maskgrad.masked_tensor import MaskedTensor, masked

__all__ = ["look_up"]

Indices = Tensor | MaskedTensor


def look_up(
    tables: Sequence[ShardedTable],
    indices: Sequence[Any],
    *,
    repeated: Sequence[bool],
    refusal: Exception | None,
    what: str,
) -> list[tuple[Tensor, Any]]:
    """For each table some rows (m, *row), and where among them the row of each index stands.

    Args:
        tables: on the same ranks.
        indices: for each table, of any shape, perhaps masked; unspecified ones are not looked up.
        repeated: for each table, whether the rows are as many as the indices, in their order. Those of halves always
            are: gradients that are added up outside would be rounded.
        refusal: what is wrong with the arguments, if that is known already.
        what: what to call it in an error.

    Returns:
        For each table the rows, and places among them in the shape of ``indices``, masked as they are.
    """
    ranks = tables[0].ranks
    plain: list[Tensor] = []
    if refusal is None:
        try:
            for position, (table, index) in enumerate(zip(tables, indices, strict=True)):
                name = what if len(tables) == 1 else f"{what}, table {position}"
                plain.append(_checked(index, table, name))
        except (TypeError, ValueError, IndexError) as error:
            refusal = error
    if refusal is not None:
        plain = [torch.empty(0, dtype=torch.int64, device=table.weight.device) for table in tables]
    needed = [table.weight.requires_grad and torch.is_grad_enabled() for table in tables]
    plan = fingerprint("look-up", [table._plan for table in tables], needed)
    route = find_route(ranks, [table.placement for table in tables], plain, plan, refusal, what)
    for table, rows in zip(tables, route.rows, strict=True):
        table._ready(rows)
        if table.max_norm is not None and len(rows):
            with torch.no_grad():
                torch.embedding_renorm_(table.weight, rows, table.max_norm, table.norm_type)
        table._looked_up()
    repeated = [
        each_index or table.weight.dtype in (torch.float16, torch.bfloat16)
        for each_index, table in zip(repeated, tables, strict=True)
    ]
    found = fetch_rows(
        route,
        [table.weight for table in tables],
        repeated=repeated,
        paddings=[table._local_padding for table in tables],
        average=tables[0].gradients == "average",
    )
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
    plain = cast(Tensor, index.compressed() if isinstance(index, MaskedTensor) else index.reshape(-1))
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
    return masked(
        torch.zeros(mask.shape, dtype=places.dtype, device=mask.device).masked_scatter(mask, places), mask
    )
