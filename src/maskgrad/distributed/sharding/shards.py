"""Parameters that are one rank's part of a table, and what has to be agreed on about their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from maskgrad.distributed.sharding.agreement import announce, fingerprint
from maskgrad.distributed.sharding.ranks import Ranks

__all__ = ["groups_of", "is_sharded", "mark_sharded", "overflow_on_other_ranks", "ranks_of"]

_ATTRIBUTE = "_maskgrad_sharded"


def mark_sharded(param: Tensor, ranks: Ranks) -> None:
    """``param`` is a part of what these ranks have together."""
    setattr(param, _ATTRIBUTE, ranks)


def ranks_of(param: Tensor) -> Ranks | None:
    """Who has the other parts of ``param``; None if it is no part."""
    found: Ranks | None = getattr(param, _ATTRIBUTE, None)
    return found


def is_sharded(param: Tensor) -> bool:
    """Whether a parameter is one rank's part of a sharded table: its gradient is complete, and nobody else's concern.

    Args:
        param: any parameter.

    Dense equivalent: nothing; a replicated parameter has its gradients summed over ranks.

    Example:
        >>> mg.distributed.is_sharded(mg.distributed.ShardedEmbedding(3, 1).weight)
        True

    Source: ``_ddp_params_and_buffers_to_ignore``, by which DistributedDataParallel is told.
    """
    return ranks_of(param) is not None


def groups_of(params: Iterable[Tensor]) -> Iterator[tuple[Ranks, list[Tensor]]]:
    """The sharded ones among ``params``, by who shares them, in the same order on all ranks."""
    found: dict[int, tuple[Ranks, list[Tensor]]] = {}
    for param in params:
        ranks = ranks_of(param)
        if ranks is not None:
            found.setdefault(id(ranks.group), (ranks, []))[1].append(param)
    yield from found.values()


def overflow_on_other_ranks(params: Iterable[Tensor], here: bool) -> bool:
    """Whether the gradients of some rank have overflowed, ``here`` or elsewhere, if shards are among ``params``.

    Each rank sees the gradients of its own rows only; one of them must not skip a step, or change its scale, alone.
    """
    for ranks, shards in groups_of(params):
        if ranks.size > 1:
            flags = torch.full((ranks.size, 1), int(here), device=shards[0].device)
            plan = fingerprint("overflow", len(shards))
            here = bool(announce(ranks, flags, plan, None, "GradScaler").any())
    return here
