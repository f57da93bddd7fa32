"""Clipping by a norm to which every rank contributes its shards."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from maskgrad.distributed.sharding.agreement import announce, fingerprint
from maskgrad.distributed.sharding.shards import groups_of, is_sharded
from maskgrad.gradients.clipping import clip_grads_with_norm_, grad_norm
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["clip_grad_norm_"]


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | MaskedTensor | Iterable[Tensor | MaskedTensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    r"""As :func:`maskgrad.clip_grad_norm_`, if some parameters are shards: the norm is that of one process.

    .. math:: \Bigl(\sum_{\text{replicated}} |g_i|^p + \sum_{\text{ranks}}\ \sum_{\text{shards}} |g_i|^p\Bigr)^{1/p}

    Args:
        parameters: parameters, or one; the same on all ranks. Those that are not sharded have equal gradients on all
            ranks: :func:`all_reduce_gradients` comes first.
        max_norm: the largest norm that is left alone.
        norm_type: the order p, above 0, perhaps inf.
        error_if_nonfinite: raise on all ranks if the norm is NaN or infinite; nothing has been changed then.
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

    Source: ``torch.nn.utils.clip_grad_norm_``, and what it does with DTensors.
    """
    limit, order = float(max_norm), float(norm_type)
    if math.isnan(limit) or limit < 0:
        raise ValueError(f"max_norm must be at least 0, found {max_norm}")
    if not order > 0:
        raise ValueError(f"norm_type must be above 0 where ranks add up their parts, found {norm_type}")
    given = [parameters] if isinstance(parameters, (Tensor, MaskedTensor)) else list(parameters)
    shards = [p for p in given if isinstance(p, Tensor) and is_sharded(p)]
    refusal: Exception | None = None
    own = {id(p) for p in shards}
    norms = []
    try:
        norms.append(grad_norm([p for p in given if id(p) not in own], order, foreach=foreach))
    except (TypeError, ValueError, IndexError) as error:
        refusal = error
    for ranks, members in groups_of(shards):
        norm = torch.zeros((), device=members[0].device)
        try:
            norm = grad_norm(members, order, foreach=foreach) if refusal is None else norm
        except (TypeError, ValueError, IndexError) as error:
            refusal = error
        # The bits of a float64 travel with what is agreed on anyway.
        bits = norm.double().view(torch.int64).expand(ranks.size, 1)
        plan = fingerprint("norm", len(members), order, limit)
        parts = announce(ranks, bits.contiguous(), plan, refusal, "clip_grad_norm_").contiguous()
        norms.append(torch.linalg.vector_norm(parts.view(torch.float64), order).to(norm.dtype))
    if refusal is not None:
        raise refusal
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
