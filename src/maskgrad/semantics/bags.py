"""Bags of indices: deleting indices from them, and pooling the rows of a masked table."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.semantics.compaction import specified_first
from maskgrad.semantics.entries import Entries


def split_offsets(indices: Tensor, offsets: Tensor | None, include_last_offset: bool) -> Tensor:
    """Where each bag begins, and where the last one ends."""
    if isinstance(offsets, Entries):
        raise TypeError(
            "offsets must be a plain tensor: where a bag begins must be known. Use offsets.compressed()"
        )
    if indices.ndim == 2:
        if offsets is not None:
            raise ValueError(
                "if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length "
                f"sequences. However, found offsets of type {type(offsets)}"
            )
        return torch.arange(indices.shape[0] + 1, device=indices.device) * indices.shape[1]
    if indices.ndim != 1:
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {indices.ndim}")
    if offsets is None or offsets.ndim != 1:
        raise ValueError(f"offsets has to be a 1D Tensor{' but got None' if offsets is None else ''}")
    if include_last_offset:
        return offsets
    return torch.cat([offsets, offsets.new_full((1,), len(indices))])


class Bags(NamedTuple):
    """Indices that are specified, bag by bag, and the rest in a last bag of its own, which is to be dropped.

    Attributes:
        indices: in their order; the rest, if it was kept, reads row 0.
        starts: where each bag begins; the last number is where the rest does.
        factors: the weight of each index, None if all weigh the same.
    """

    indices: Tensor
    starts: Tensor
    factors: Tensor | None

    @classmethod
    def of(cls, indices: Tensor, known: Tensor, starts: Tensor, factors: Tensor | None, alone: bool) -> Bags:
        """Delete the unspecified indices: ``alone`` from memory, else (static shapes) from all bags but the last."""
        before = F.pad(known.cumsum(0), (1, 0))
        moved = before[starts].to(indices.dtype)
        if alone:
            return cls(indices[known], moved, None if factors is None else factors[known])
        order = specified_first(known, 0)
        if factors is not None:
            factors = torch.where(known, factors, 0).gather(0, order)
        return cls(indices.gather(0, order), moved, factors)


def pooled(
    bags: Bags, table: Tensor, present: Tensor, mode: str, padding_idx: int | None, **options: Any
) -> Entries:
    """Sum, mean or maximum over the specified entries of the rows of each bag."""
    padding_idx = padding_idx if padding_idx is None or padding_idx >= 0 else len(table) + padding_idx
    rows = F.embedding(bags.indices, table, padding_idx, **options)
    listed = F.embedding(bags.indices, present)
    position = torch.arange(len(bags.indices), device=table.device)
    owner = torch.searchsorted(bags.starts, position.to(bags.starts.dtype), right=True) - 1
    # An index of padding takes no part, but a bag of nothing else has the result 0 in torch.
    taking_part = listed if padding_idx is None else listed & (bags.indices != padding_idx).unsqueeze(-1)
    empty = rows.new_zeros(
        len(bags.starts), rows.shape[1], dtype=torch.promote_types(rows.dtype, torch.float32)
    )
    mask = (empty.detach().index_add(0, owner, listed.to(empty.dtype)) > 0)[:-1]
    safe = torch.where(taking_part, rows, 0).to(empty.dtype)
    if mode == "max":
        return Entries(_maximum(safe, taking_part, owner, empty)[:-1].to(rows.dtype), mask)
    if bags.factors is not None:
        safe = safe * torch.where(taking_part, bags.factors.unsqueeze(-1), 0)
    total = empty.index_add(0, owner, safe)[:-1]
    if mode == "mean":
        count = empty.index_add(0, owner, taking_part.to(empty.dtype))[:-1]
        total = total / count.clamp(min=1)
    return Entries(total.to(rows.dtype), mask)


def _maximum(rows: Tensor, taking_part: Tensor, owner: Tensor, empty: Tensor) -> Tensor:
    """The largest entries, 0 where there is none; the gradient goes to the first of equals, as in torch."""
    owners = owner.unsqueeze(-1).expand(rows.shape)
    found = torch.where(taking_part, rows.detach(), -torch.inf)
    largest = torch.full_like(empty, -torch.inf).scatter_reduce(0, owners, found, "amax")
    wins = taking_part & ((found == largest.gather(0, owners)) | found.isnan())
    position = torch.arange(len(rows), device=rows.device).unsqueeze(-1).expand(rows.shape)
    none = torch.full(empty.shape, len(rows), device=rows.device)
    winner = none.scatter_reduce(0, owners, torch.where(wins, position, len(rows)), "amin")
    return torch.cat([rows, rows.new_zeros(1, rows.shape[1])]).gather(0, winner)
