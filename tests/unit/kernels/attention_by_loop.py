"""Attention over packed rows in a loop over sequences, heads and queries, in float64."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

__all__ = ["by_loop", "offsets_of"]


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def by_loop(
    query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, key_offsets: Tensor, mask: Tensor | None,
    is_causal: bool, scale: float | None,
) -> Tensor:  # fmt: skip
    """The formula, query by query."""
    query, key, value = (x.double() for x in (query, key, value))
    if mask is not None:
        longest = int(offsets.diff().max()) if len(offsets) > 1 else 0
        mask = mask.expand(len(offsets) - 1, query.shape[1], max(longest, mask.shape[-2]), mask.shape[-1])
    factor = query.shape[2] ** -0.5 if scale is None else scale
    shared = query.shape[1] // key.shape[1]
    rows = []
    for b, (lo, hi) in enumerate(itertools.pairwise(offsets.tolist())):
        first, last = key_offsets.tolist()[b : b + 2]
        for i, h in itertools.product(range(hi - lo), range(query.shape[1])):
            scores = [factor * (query[lo + i, h] * key[j, h // shared]).sum() for j in range(first, last)]
            kept = list(range(last - first))
            if mask is not None:
                part = mask[b, h, i]
                kept = [j for j in kept if (part[j] if part.dtype == torch.bool else part[j] != -torch.inf)]
                if part.dtype != torch.bool:
                    scores = [s + part[j].double() for j, s in enumerate(scores)]
            if is_causal:
                kept = [j for j in kept if j <= i]
            if not kept:
                rows.append((0 * query[lo + i, h, :1]).expand(value.shape[2]))
                continue
            powers = torch.stack([scores[j] for j in kept])
            powers = (powers - powers.max()).exp()
            weights = powers / powers.sum()
            rows.append(sum(w * value[first + j, h // shared] for w, j in zip(weights, kept, strict=True)))
    if not rows:
        return (query.sum() + key.sum() + value.sum()) * query.new_zeros((0, query.shape[1], value.shape[2]))
    return torch.stack(rows).view(*query.shape[:2], value.shape[2])
