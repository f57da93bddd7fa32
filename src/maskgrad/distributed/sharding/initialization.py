"""First values of a table that no process holds as a whole, the same for any number of ranks.

Blocks of rows have random numbers of their own: block b those of the seed ``(seed + b) mod 2**32``. A rank draws the
blocks it has rows of. (PyTorch's generator on the CPU reads 32 bits of its seed; what is consecutive never collides.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.distributed.sharding.placement import Placement

__all__ = ["Initializer", "draw_seed", "fill_shard"]

Initializer = Callable[[Tensor, torch.Generator], Any]
"""Fills a tensor (k, *row) in place with numbers of a generator."""

_BLOCK = 4096
_SEEDS = 1 << 32


def draw_seed() -> int:
    """A seed from PyTorch's default generator; takes the same from it whatever the table."""
    return int(torch.randint(_SEEDS, ()).item())


@torch.no_grad()
def fill_shard(shard: Tensor, placement: Placement, seed: int, fill: Initializer | None) -> None:
    """Fill ``shard`` (local_rows, *row) with its part of the table that belongs to ``seed``.

    Args:
        shard: written in place; a GPU gets what the CPU draws.
        placement: which rows those are.
        seed: of the whole table.
        fill: None: standard normal numbers, as in ``torch.nn.Embedding``.
    """
    first, end = placement.first_row(placement.rank), placement.first_row(placement.rank + 1)
    total = placement.slots * placement.places
    generator = torch.Generator()
    for start in range(first - first % _BLOCK, end, _BLOCK):
        block = torch.empty((min(_BLOCK, total - start), *shard.shape[1:]), dtype=shard.dtype)
        generator.manual_seed((seed + start // _BLOCK) % _SEEDS)
        (fill or _normal)(block, generator)
        low, high = max(start, first), min(start + _BLOCK, end)
        shard[low - first : high - first] = block[low - start : high - start]


def _normal(rows: Tensor, generator: torch.Generator) -> None:
    rows.normal_(generator=generator)
