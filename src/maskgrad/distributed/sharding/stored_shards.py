"""A shard as checkpoints have it: a part of a tensor whose shape does not depend on the number of ranks.

``torch.distributed.checkpoint`` writes each rank's part of a DTensor, and reads whatever parts the ranks of another
run ask for. A table that lies on one rank as a whole is a plain tensor there, and absent elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.distributed.sharding.placement import Placement
from maskgrad.distributed.sharding.ranks import Ranks

__all__ = ["shard_of_loaded", "shard_to_save"]


def shard_to_save(shard: Tensor, placement: Placement, ranks: Ranks) -> Any:
    """``shard`` (local_rows, *row) as part of the whole, sharing its memory; None where another rank has it all.

    The first dimension of ``shard`` is that of the table: a parameter, or a state of its optimizer.
    """
    if not placement.is_split:
        return None if placement.lies_elsewhere else shard
    grid = placement.grid(tuple(shard.shape[1:]))
    rows_here = shard.shape[0] // placement.places if placement.places else 0
    local = shard.view(rows_here, *grid[1:])
    if ranks.size == 1:
        return local
    from torch.distributed.tensor import DTensor, Shard

    stride = torch.empty(grid, device="meta").stride()
    return DTensor.from_local(
        local.detach(),
        ranks.mesh(shard.device),
        [Shard(0)],
        run_check=False,
        shape=torch.Size(grid),
        stride=stride,
    )


def shard_of_loaded(loaded: Any, shard: Tensor, placement: Placement) -> Tensor | None:
    """This rank's rows of ``loaded``, in the shape of ``shard``; None if its shape does not fit the table.

    Args:
        loaded: what :func:`shard_to_save` gives, or the whole table, as a grid or as rows (N, *row).
        shard: what is to be loaded; read for its shape.
        placement: of the table.
    """
    row_shape = tuple(shard.shape[1:])
    grid = placement.grid(row_shape)
    shape = tuple(loaded.shape)
    if _is_distributed(loaded):
        local: Tensor = loaded.to_local()
        return local.reshape(shard.shape) if shape == grid else None
    if shape == (placement.rows, *row_shape):
        rows = placement.own_rows(loaded.device)
        own: Tensor = loaded[rows.clamp_min(0)] if len(rows) else loaded[:0]
        return own
    if shape == grid:
        first, end = (
            placement.first_row(rank) // placement.places for rank in (placement.rank, placement.rank + 1)
        )
        return loaded[first:end].reshape(shard.shape)  # type: ignore[no-any-return]
    return None


def _is_distributed(value: Any) -> bool:
    # torch.distributed.tensor takes seconds to import; where there is a DTensor it has been.
    return hasattr(value, "to_local")
