"""Sums over the ranks that know where they come from: the derivative of a sum over ranks is a sum over ranks.

If every rank goes on to a loss of its own, the gradient here is that of the sum of all these losses. Where the ranks'
gradients are averaged afterwards, as DistributedDataParallel does, that is the gradient of the mean loss, which is
what one process on the joint batch has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor

from maskgrad.distributed.agreement import raise_everywhere
from maskgrad.distributed.process_group import ProcessGroup

__all__ = ["Gradients", "global_sums"]

Gradients = Literal["averaged", "summed"]


def _wanted_anywhere(ranks: ProcessGroup, plan: str, refusal: Exception | None, wanted: bool) -> bool:
    """Whether any rank wants a gradient; raises on all ranks if one refuses, or their plans differ.

    Args:
        ranks: who takes part.
        plan: a text that must be the same on all of them.
        refusal: why this rank cannot go on.
        wanted: whether this rank wants a gradient.
    """
    digest = int.from_bytes(hashlib.blake2b(plan.encode(), digest_size=7).digest(), "big")
    works: list[Any] = []
    told = ranks.gather(
        torch.tensor([int(refusal is not None), digest, int(wanted)], device=ranks.device), works
    )
    ranks.wait(works)
    rows = told.tolist()
    if any(row[0] or row[1] != rows[0][1] for row in rows):
        raise_everywhere(ranks, plan, refusal)
    return any(row[2] for row in rows)


def global_sums(
    ranks: ProcessGroup,
    parts: Sequence[Tensor],
    gradients: Gradients,
    refusal: Exception | None = None,
) -> tuple[Tensor, ...]:
    """The sum over the ranks of each of ``parts``, strided, in dtypes in which sums can travel.

    If a part needs a gradient on some rank, the result does on all of them, so that all take part in the backward pass.

    Args:
        ranks: who takes part.
        parts: the same number, shapes and dtypes on all ranks.
        gradients: what is done with the ranks' gradients afterwards; ``"summed"`` divides them by the number of ranks.
        refusal: why this rank cannot go on; all of them raise.
    """
    plan = f"{ranks.what} of " + "; ".join(f"{tuple(p.shape)} {p.dtype}" for p in parts)
    wanted = torch.is_grad_enabled() and any(p.requires_grad for p in parts)
    if _wanted_anywhere(ranks, plan, refusal, wanted):
        share = 1.0 if gradients == "averaged" else 1 / ranks.size
        # Where nothing needs a gradient, this makes sure that the backward pass comes by.
        witness = torch.zeros((), requires_grad=True)
        return cast("tuple[Tensor, ...]", _SumOverRanks.apply(ranks, share, witness, *parts))  # type: ignore[no-untyped-call]
    return _summed(ranks, parts)


def _summed(ranks: ProcessGroup, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    works: list[Any] = []
    sent = []
    for part in parts:
        device = ranks.transport(part.device)
        total = part.detach().to(ranks.summable(part.dtype), memory_format=torch.contiguous_format).to(device)
        total = total.clone() if total.data_ptr() == part.data_ptr() else total
        ranks.add(total, works)
        sent.append(total)
    ranks.wait(works)
    return tuple(total.to(part.device, part.dtype) for total, part in zip(sent, parts, strict=True))


class _SumOverRanks(torch.autograd.Function):
    """Tensors added up over the ranks; as is their gradient, as often as one likes."""

    @staticmethod
    def forward(ctx: Any, ranks: ProcessGroup, share: float, _: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks, ctx.share = ranks, share
        totals = _summed(ranks, parts)
        ctx.mark_non_differentiable(*(t for t in totals if not (t.is_floating_point() or t.is_complex())))
        return totals

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        chosen = [g for g in incoming if g is not None and (g.is_floating_point() or g.is_complex())]
        witness = torch.zeros((), requires_grad=True)
        summed = iter(_SumOverRanks.apply(ctx.ranks, 1.0, witness, *chosen) if chosen else ())  # type: ignore[no-untyped-call]
        back = [
            next(summed) * ctx.share if g is not None and (g.is_floating_point() or g.is_complex()) else None
            for g in incoming
        ]
        return None, None, None, *back
