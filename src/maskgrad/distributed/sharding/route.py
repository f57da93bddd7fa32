"""Which rows a look-up wants from which rank, and which rows the others want from here.

Suffixes: T tables, W ranks; of table t, n indices here, m distinct ones among them, k rows wanted by the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maskgrad.distributed.sharding.agreement import announce
from maskgrad.distributed.sharding.placement import Placement
from maskgrad.distributed.sharding.ranks import Ranks

__all__ = ["Route", "find_route"]


@dataclass(frozen=True)
class Route:
    """The ways of one look-up in T tables; the gradient goes them back.

    Attributes:
        ranks: who takes part.
        wanted: [T][W] how many distinct rows this rank wants from each.
        served: [T][W] how many rows each wants from this one.
        rows: for each table, (k,) the places in this rank's shard of what the others want, by rank.
        places: for each table, (n,) where the row of each index stands among the (m,) that arrive.
    """

    ranks: Ranks
    wanted: list[list[int]]
    served: list[list[int]]
    rows: list[Tensor]
    places: list[Tensor]

    def fetch(self, rows: Sequence[Tensor]) -> list[Tensor]:
        """For each table, (k, *row) rows by the rank that wants them; gives (m, *row), in the order of ``places``."""
        return _exchange(self.ranks, rows, self.served, self.wanted)

    def give_back(self, rows: Sequence[Tensor], tables: Sequence[int]) -> list[Tensor]:
        """The other way, for some ``tables``: (m, *row) go where they came from; gives (k, *row) as in ``rows``."""
        wanted, served = [self.wanted[t] for t in tables], [self.served[t] for t in tables]
        return _exchange(self.ranks, rows, wanted, served)


def find_route(
    ranks: Ranks,
    placements: Sequence[Placement],
    indices: Sequence[Tensor],
    plan: int,
    refusal: Exception | None,
    what: str,
) -> Route:
    """Merge the ``indices`` (n,) of each table, and tell the ranks which rows of theirs are wanted.

    If there is a ``refusal`` here or on another rank, every rank raises, and nothing else is sent.

    Raises:
        Exception: what :func:`announce` raises.
        RuntimeError: another rank has ended.
    """
    distinct, places, counts = [], [], []
    for placement, index in zip(placements, indices, strict=True):
        merged, inverse = torch.unique(placement.physical(index.long()), return_inverse=True)
        ends = placement.boundaries(index.device)
        by_rank = torch.searchsorted(merged, ends).diff()
        # Rows travel as numbers within a shard, for which 32 bits do where the shard is no giant.
        local = merged - ends[:-1].repeat_interleave(by_rank)
        distinct.append(local.int() if placement.largest_shard < 2**31 else local)
        places.append(inverse)
        counts.append(by_rank)
    asked = torch.stack(counts, 1)  # (W, T)
    asking = announce(ranks, asked, plan, refusal, what)
    wanted, served = asked.T.tolist(), asking.T.tolist()
    rows = [row.long() for row in _exchange(ranks, distinct, wanted, served)]
    return Route(ranks, wanted, served, rows, places)


def _exchange(
    ranks: Ranks, rows: Sequence[Tensor], sent: list[list[int]], received: list[list[int]]
) -> list[Tensor]:
    """All-to-all of the rows of several tables, by rank; one message to each rank and dtype."""
    if ranks.size == 1:
        return list(rows)
    if len(rows) == 1:
        return [ranks.exchange(rows[0], sent[0], received[0])]
    arrived: list[Tensor] = [*rows]
    for dtype in dict.fromkeys(part.dtype for part in rows):
        of_dtype = [t for t, part in enumerate(rows) if part.dtype is dtype]
        widths = {t: rows[t].shape[1:].numel() for t in of_dtype}
        by_rank = zip(
            *(rows[t].reshape(-1).split(_entries(sent[t], widths[t])) for t in of_dtype), strict=True
        )
        message = torch.cat([part for parts in by_rank for part in parts])
        lengths = [
            [sum(counts[t][rank] * widths[t] for t in of_dtype) for rank in range(ranks.size)]
            for counts in (sent, received)
        ]
        answer = ranks.exchange(message, *lengths)
        pieces = answer.split([received[t][rank] * widths[t] for rank in range(ranks.size) for t in of_dtype])
        for place, t in enumerate(of_dtype):
            arrived[t] = torch.cat(pieces[place :: len(of_dtype)]).view(-1, *rows[t].shape[1:])
    return arrived


def _entries(counts: list[int], width: int) -> list[int]:
    return [count * width for count in counts]
