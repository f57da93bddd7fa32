"""Attention over packed rows in a loop over sequences, heads and queries, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["by_loop", "offsets_of", "twice"]


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def by_loop(
    query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, key_offsets: Tensor, mask: Tensor | None,
    is_causal: bool, scale: float | None,
) -> Tensor:  # fmt: skip
    """The formula, sequence by sequence; 0 where no key takes part."""
    heads, factor = query.shape[1], query.shape[2] ** -0.5 if scale is None else scale
    found = []
    for b, ((lo, hi), (first, last)) in enumerate(
        zip(itertools.pairwise(offsets.tolist()), itertools.pairwise(key_offsets.tolist()), strict=True)
    ):
        q = query[lo:hi].double().transpose(0, 1)
        k, v = (
            x[first:last].double().transpose(0, 1).repeat_interleave(heads // x.shape[1], 0)
            for x in (key, value)
        )
        scores, allowed = factor * q @ k.mT, torch.ones(hi - lo, last - first).bool()
        if is_causal:
            allowed = allowed.tril()
        if mask is not None:
            part = mask.expand(len(offsets) - 1, heads, max(hi - lo, mask.shape[-2]), -1)[
                b, :, : hi - lo, : last - first
            ]
            allowed = part if part.dtype == torch.bool else part != -torch.inf
            scores = scores if part.dtype == torch.bool else scores + torch.where(allowed, part, 0)
        powers = torch.where(allowed, scores, -torch.inf)
        highest = powers.detach().amax(-1, True).clamp(min=-1e9) if last > first else 0
        powers = torch.where(allowed, (torch.where(allowed, scores, 0) - highest).exp(), 0)
        total = powers.sum(-1, keepdim=True)
        found.append((powers / torch.where(total > 0, total, 1) @ v).transpose(0, 1))
    nothing = query.double()[:0, :, :1] + (key.double()[:0].sum() + value.double()[:0].sum())
    return torch.cat([nothing.expand(0, heads, value.shape[2]), *found])


def twice(result: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """First and second derivatives; zeros for what takes no part."""
    first = torch.autograd.grad(
        result.square().sum(), leaves, create_graph=True, allow_unused=True, materialize_grads=True
    )
    total = torch.stack([x.sin().sum() for x in first]).sum()
    if not total.requires_grad:
        return first
    return *first, *torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
