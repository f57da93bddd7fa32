"""Which rank keeps which rows of a table.

A table of N rows is seen as a grid of S slots with R places each, in row-major order ("physical" rows). Whole slots
are dealt out to the ranks, ``ceil(S / W)`` to each, in order; this is how ``torch.chunk`` and DTensor's ``Shard(0)``
cut, so a shard is a rectangle of a tensor whose shape does not depend on the number of ranks W.

- ``"block"``: N slots with one place. Neighbouring rows are neighbours, and the grid is the table itself.
- ``"cyclic"``: row i lies in slot ``i % S``, place ``i // S``. Neighbouring rows lie on different ranks, so that rows
  sorted by how often they are needed burden all ranks alike. S is a power of two near the square root of N.
- a rank: all rows lie there ("table-wise").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

__all__ = ["Arrangement", "Placement"]

Arrangement = Literal["block", "cyclic"]


@dataclass(frozen=True)
class Placement:
    """Where the rows of one table are, seen from rank ``rank`` of ``world_size``.

    Attributes:
        rows: number of rows of the whole table.
        world_size: number of ranks.
        rank: this one.
        arrangement: ``"block"``, ``"cyclic"``, or the number of the only rank that has rows.
    """

    rows: int
    world_size: int
    rank: int
    arrangement: Arrangement | int

    def __post_init__(self) -> None:
        if isinstance(self.arrangement, int) and not isinstance(self.arrangement, bool):
            if not 0 <= self.arrangement < self.world_size:
                raise ValueError(
                    f"placement names rank {self.arrangement}, but the ranks are 0 to {self.world_size - 1}"
                )
        elif self.arrangement not in get_args(Arrangement):
            raise ValueError(
                f'placement must be "block", "cyclic" or the number of a rank; got {self.arrangement!r}'
            )

    @property
    def is_split(self) -> bool:
        """Whether several ranks share the rows."""
        return isinstance(self.arrangement, str)

    @property
    def lies_elsewhere(self) -> bool:
        """Whether another rank has all rows."""
        return not self.is_split and self.rank != self.arrangement

    @property
    def slots(self) -> int:
        """S, the length of the dimension that is dealt out."""
        if self.arrangement == "cyclic":
            return 1 << self.rows.bit_length() // 2
        return self.rows

    @property
    def places(self) -> int:
        """R, the rows in a slot; those beyond the table are there, and never used."""
        return -(-self.rows // self.slots) if self.arrangement == "cyclic" else 1

    def grid(self, row_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the whole table as checkpoints have it; its first dimension is the one that is cut."""
        return (
            (self.slots, self.places, *row_shape) if self.arrangement == "cyclic" else (self.rows, *row_shape)
        )

    def first_row(self, rank: int) -> int:
        """The first physical row of ``rank``; that of ``world_size`` is the end."""
        if isinstance(self.arrangement, int):
            return self.rows if rank > self.arrangement else 0
        return min(rank * -(-self.slots // self.world_size), self.slots) * self.places

    @property
    def local_rows(self) -> int:
        """How many rows lie here."""
        return self.first_row(self.rank + 1) - self.first_row(self.rank)

    @property
    def largest_shard(self) -> int:
        """The most rows that lie on one rank."""
        return -(-self.slots // self.world_size) * self.places if self.is_split else self.rows

    def physical(self, rows: Tensor) -> Tensor:
        """The place of ``rows`` (*) in the grid; ascending with the rank that has them."""
        if self.arrangement != "cyclic":
            return rows
        return (rows & (self.slots - 1)) * self.places + (rows >> self.slots.bit_length() - 1)

    def boundaries(self, device: torch.device) -> Tensor:
        """(W + 1,) first physical row of each rank, and the end."""
        return torch.tensor([self.first_row(rank) for rank in range(self.world_size + 1)], device=device)

    def own_rows(self, device: torch.device | None = None) -> Tensor:
        """(local_rows,) which rows of the table lie here, in order; -1 where there is none."""
        physical = torch.arange(self.first_row(self.rank), self.first_row(self.rank + 1), device=device)
        if self.arrangement != "cyclic":
            return physical
        rows = physical // self.places + physical % self.places * self.slots
        return torch.where(rows < self.rows, rows, -1)

    def local_row(self, row: int) -> int | None:
        """Where ``row`` lies in this rank's shard; None if it lies elsewhere."""
        physical = row if self.arrangement != "cyclic" else row % self.slots * self.places + row // self.slots
        first = self.first_row(self.rank)
        return physical - first if first <= physical < self.first_row(self.rank + 1) else None
