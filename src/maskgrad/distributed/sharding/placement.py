"""Placement of the rows of a table: their rank, initial values, and the saved form of a shard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from maskgrad.distributed.process_group import ProcessGroup

__all__ = [
    "Arrangement",
    "Initializer",
    "Placement",
    "draw_seed",
    "fill_shard",
    "shard_of_loaded",
    "shard_to_save",
]

Arrangement = Literal["block", "cyclic"]


@dataclass(frozen=True)
class Placement:
    """Placement of the N rows of a table, on rank ``rank`` of ``world_size``.

    The table is a grid of ``grid_rows`` times ``grid_columns`` rows, in row-major order ("physical" rows). The rows of
    the grid are divided among the ranks in order, ``ceil(grid_rows / world_size)`` to each, as ``torch.chunk`` and
    DTensor's ``Shard(0)`` divide: a shard is a part of a tensor whose shape does not depend on the number of ranks.

    - ``"block"``: the grid is the table itself, with one column.
    - ``"cyclic"``: row i is in row ``i % grid_rows`` of the grid, so that neighbours are on different ranks, and rows
      sorted by frequency load all ranks evenly. ``grid_rows`` is a power of two near the
      square root of N; grid entries beyond the table are not used.
    - an int: all rows are on that rank.
    """

    rows: int
    world_size: int
    rank: int
    arrangement: Arrangement | int

    def __post_init__(self) -> None:
        if isinstance(self.arrangement, int) and not isinstance(self.arrangement, bool):
            if not 0 <= self.arrangement < self.world_size:
                raise ValueError(
                    f"placement is rank {self.arrangement}, but the ranks are 0 to {self.world_size - 1}"
                )
        elif self.arrangement not in get_args(Arrangement):
            raise ValueError(
                f'placement must be "block", "cyclic" or the index of a rank; got {self.arrangement!r}'
            )

    @property
    def is_split(self) -> bool:
        """Return whether several ranks share the rows."""
        return isinstance(self.arrangement, str)

    @property
    def lies_elsewhere(self) -> bool:
        """Return whether another rank has all rows."""
        return not self.is_split and self.rank != self.arrangement

    @property
    def grid_rows(self) -> int:
        """Length of the sharded dimension."""
        return 1 << self.rows.bit_length() // 2 if self.arrangement == "cyclic" else self.rows

    @property
    def grid_columns(self) -> int:
        """Number of rows of the table in a row of the grid."""
        return -(-self.rows // self.grid_rows) if self.arrangement == "cyclic" else 1

    def grid(self, row_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the whole table in checkpoints; its first dimension is sharded."""
        columns = (self.grid_columns,) if self.arrangement == "cyclic" else ()
        return self.grid_rows, *columns, *row_shape

    def first_row(self, rank: int) -> int:
        """The first physical row of ``rank``; that of ``world_size`` is the end."""
        if isinstance(self.arrangement, int):
            return self.rows if rank > self.arrangement else 0
        return min(rank * -(-self.grid_rows // self.world_size), self.grid_rows) * self.grid_columns

    @property
    def local_rows(self) -> int:
        """Number of rows of this rank."""
        return self.first_row(self.rank + 1) - self.first_row(self.rank)

    @property
    def largest_shard(self) -> int:
        """Maximum number of rows on one rank."""
        return -(-self.grid_rows // self.world_size) * self.grid_columns if self.is_split else self.rows

    def physical(self, rows: Tensor) -> Tensor:
        """Position of ``rows`` (*) in the grid; ascending with their rank."""
        if self.arrangement != "cyclic":
            return rows
        return (rows & (self.grid_rows - 1)) * self.grid_columns + (rows >> self.grid_rows.bit_length() - 1)

    def boundaries(self, device: torch.device) -> Tensor:
        """(W + 1,) first physical row of each rank, and the end."""
        return torch.tensor([self.first_row(rank) for rank in range(self.world_size + 1)], device=device)

    def own_rows(self, device: torch.device | None = None) -> Tensor:
        """(local_rows,) the rows of the table on this rank, in order; -1 if there is none."""
        physical = torch.arange(self.first_row(self.rank), self.first_row(self.rank + 1), device=device)
        if self.arrangement != "cyclic":
            return physical
        rows = physical // self.grid_columns + physical % self.grid_columns * self.grid_rows
        return torch.where(rows < self.rows, rows, -1)

    def local_row(self, row: int) -> int | None:
        """Position of ``row`` in this rank's shard; None if it is elsewhere."""
        physical = (
            row
            if self.arrangement != "cyclic"
            else row % self.grid_rows * self.grid_columns + row // self.grid_rows
        )
        first = self.first_row(self.rank)
        return physical - first if first <= physical < self.first_row(self.rank + 1) else None


Initializer = Callable[[Tensor, torch.Generator], Any]
"""Fills a tensor (k, *row) in place with values from a generator."""

_BLOCK = 4096
_SEEDS = 1 << 32


def draw_seed() -> int:
    """Draw a seed from PyTorch's default generator; advances it equally for any table."""
    return int(torch.randint(_SEEDS, ()).item())


@torch.no_grad()
def fill_shard(shard: Tensor, placement: Placement, seed: int, fill: Initializer | None) -> None:
    """Fill ``shard`` (local_rows, *row) in place with its part of the table of ``seed``, for any number of ranks.

    Block b of the rows has the seed ``(seed + b) mod 2**32``; a rank draws the blocks with its rows.
    (PyTorch's generator on the CPU reads 32 bits of its seed.) A GPU gets values drawn on the CPU. Without ``fill`` the
    values are standard normal, as in ``torch.nn.Embedding``.
    """
    first, end = placement.first_row(placement.rank), placement.first_row(placement.rank + 1)
    total = placement.grid_rows * placement.grid_columns
    generator = torch.Generator()
    for start in range(first - first % _BLOCK, end, _BLOCK):
        block = torch.empty((min(_BLOCK, total - start), *shard.shape[1:]), dtype=shard.dtype)
        generator.manual_seed((seed + start // _BLOCK) % _SEEDS)
        if fill is None:
            block.normal_(generator=generator)
        else:
            fill(block, generator)
        low, high = max(start, first), min(start + _BLOCK, end)
        shard[low - first : high - first] = block[low - start : high - start]


def shard_to_save(shard: Tensor, placement: Placement, ranks: ProcessGroup) -> Any:
    """``shard`` (local_rows, *row) as part of the whole, sharing its memory; None if another rank has all of it.

    The first dimension of ``shard`` is that of the table: a parameter, or a state of its optimizer.
    """
    if not placement.is_split:
        return None if placement.lies_elsewhere else shard
    grid = placement.grid(tuple(shard.shape[1:]))
    rows_here = shard.shape[0] // placement.grid_columns if placement.grid_columns else 0
    local = shard.view(rows_here, *grid[1:])
    if ranks.size == 1:
        return local
    from torch.distributed.tensor import DTensor, Shard

    whole = torch.empty(grid, device="meta")
    mesh = ranks.mesh(shard.device)
    return DTensor.from_local(
        local.detach(), mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
    )


def shard_of_loaded(loaded: Any, shard: Tensor, placement: Placement) -> Tensor | None:
    """This rank's rows of ``loaded``, in the shape of ``shard``; None if its shape does not fit the table.

    ``loaded`` is a result of :func:`shard_to_save`, or the whole table, as a grid or as rows (N, *row).
    """
    row_shape = tuple(shard.shape[1:])
    grid = placement.grid(row_shape)
    shape = tuple(loaded.shape)
    if hasattr(loaded, "to_local"):  # a DTensor, whose module takes seconds to import
        local: Tensor = loaded.to_local()
        return local.reshape(shard.shape) if shape == grid else None
    if shape == (placement.rows, *row_shape):
        rows = placement.own_rows(loaded.device)
        own: Tensor = loaded[rows.clamp_min(0)] if len(rows) else loaded[:0]
        return own
    if shape == grid:
        first, end = placement.first_row(placement.rank), placement.first_row(placement.rank + 1)
        columns = placement.grid_columns
        return loaded[first // columns : end // columns].reshape(shard.shape)  # type: ignore[no-any-return]
    return None
