"""Parameters that are shards of a table: marking, overflow and norm of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from maskgrad.distributed.agreement import Postponed, exchange_numbers
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.gradients.clipping import clip_grads_with_norm_, grad_norm
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["clip_grad_norm_", "is_sharded", "mark_sharded", "overflow_on_other_ranks"]

_ATTRIBUTE = "_maskgrad_sharded"


def mark_sharded(param: Tensor, ranks: ProcessGroup) -> None:
    """Mark ``param`` as a shard on these ranks."""
    setattr(param, _ATTRIBUTE, ranks)


def is_sharded(param: Tensor) -> bool:
    """Return whether a parameter is a shard of a sharded table, with a complete gradient.

    Args:
        param: any parameter.

    Dense equivalent: nothing; a replicated parameter has its gradients summed over ranks.

    Example:
        >>> mg.distributed.is_sharded(mg.distributed.ShardedEmbedding(3, 1).weight)
        True

    Source: ``_ddp_params_and_buffers_to_ignore`` of DistributedDataParallel.
    """
    return hasattr(param, _ATTRIBUTE)


def groups_of(params: Iterable[Tensor]) -> Iterator[tuple[ProcessGroup, list[Tensor]]]:
    """The sharded ones among ``params``, by process group, in the same order on all ranks."""
    found: dict[int, tuple[ProcessGroup, list[Tensor]]] = {}
    for param in params:
        if is_sharded(param):
            ranks: ProcessGroup = getattr(param, _ATTRIBUTE)
            found.setdefault(id(ranks.group), (ranks, []))[1].append(param)
    yield from found.values()


def overflow_on_other_ranks(params: Iterable[Tensor], here: bool) -> bool:
    """Return whether gradients have overflowed ``here`` or, if ``params`` contains shards, on any rank.

    Each rank has the gradients of its own rows only, but all must skip steps, or change scales, together.
    """
    for ranks, shards in groups_of(params):
        if ranks.size > 1:
            flags = torch.full((ranks.size, 1), int(here), device=shards[0].device)
            plan = f"{len(shards)} shards that may overflow"
            here = bool(exchange_numbers(ranks, flags, plan, None, "GradScaler").any())
    return here


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | MaskedTensor | Iterable[Tensor | MaskedTensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    r"""As :func:`maskgrad.clip_grad_norm_`, for parameters with shards: the norm is that of one process.

    .. math:: \Bigl(\sum_{\text{replicated}} |g_i|^p + \sum_{\text{ranks}}\ \sum_{\text{shards}} |g_i|^p\Bigr)^{1/p}

    Args:
        parameters: parameters, or one; the same on all ranks. Those that are not sharded have equal gradients on all
            ranks: call :func:`all_reduce_gradients` first.
        max_norm: the largest norm that is not clipped.
        norm_type: the order p, above 0, possibly inf.
        error_if_nonfinite: raise on all ranks if the norm is NaN or infinite; nothing is changed then.
        foreach: as in PyTorch.

    Returns:
        The norm before clipping, a 0-dim tensor, equal on all ranks.

    Raises:
        ValueError: ``max_norm`` is negative or NaN, or ``norm_type`` is not above 0.
        RuntimeError: the norm is not finite, and ``error_if_nonfinite``; or another rank has ended.
        TypeError, IndexError: as :func:`maskgrad.grad_norm`; on every rank.

    Dense equivalent: ``torch.nn.utils.clip_grad_norm_`` in one process.

    Example:
        >>> table = mg.distributed.ShardedEmbedding(4, 1)
        >>> table(torch.tensor([1, 1])).sum().backward()
        >>> mg.distributed.clip_grad_norm_(table.parameters(), 1.0)
        tensor(2.)

    Source: ``torch.nn.utils.clip_grad_norm_``, and its treatment of DTensors.
    """
    limit, order = float(max_norm), float(norm_type)
    if math.isnan(limit) or limit < 0:
        raise ValueError(f"max_norm must be at least 0, found {max_norm}")
    if not order > 0:
        raise ValueError(f"norm_type must be above 0 for sharded parameters, found {norm_type}")
    given = [parameters] if isinstance(parameters, (Tensor, MaskedTensor)) else list(parameters)
    shards = [p for p in given if isinstance(p, Tensor) and is_sharded(p)]
    own = {id(p) for p in shards}
    norms = []
    with Postponed() as postponed:
        norms.append(grad_norm([p for p in given if id(p) not in own], order, foreach=foreach))
    for ranks, members in groups_of(shards):
        norm = torch.zeros((), device=members[0].device)
        if postponed.error is None:
            with postponed:
                norm = grad_norm(members, order, foreach=foreach)
        # The bits of a float64 are sent with the data that is compared anyway.
        bits = norm.double().view(torch.int64).expand(ranks.size, 1)
        plan = f"{len(members)} shards; norm_type={order}; max_norm={limit}"
        received = exchange_numbers(ranks, bits.contiguous(), plan, postponed.error, "clip_grad_norm_")
        parts = received.contiguous()
        norms.append(torch.linalg.vector_norm(parts.view(torch.float64), order).to(norm.dtype))
    if postponed.error is not None:
        raise postponed.error
    device = norms[-1].device
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms]), order)
    if error_if_nonfinite and not bool(total.isfinite()):
        raise RuntimeError(
            f"The total norm of order {order} for gradients from `parameters` is non-finite, so it cannot be clipped. "
            "To disable this error and scale the gradients by the non-finite norm anyway, set "
            "`error_if_nonfinite=False`"
        )
    clip_grads_with_norm_(given, limit, total, foreach)
    return total
