"""What the oracles of losses have in common: arguments by name, and reductions over what is left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.laws.evaluation import NUMBER

__all__ = ["Named", "reduced"]


class Named(NamedTuple):
    """The arguments of a call by name, and the masks in place of the tensors."""

    values: Mapping[str, Any]
    masks: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:  # type: ignore[override]
        return self.values[name]


def reduced(
    losses: Sequence[Tensor | None],
    shape: Sequence[int],
    reduction: str,
    dtype: torch.dtype,
    weights: Sequence[Tensor | None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Losses position by position, None where there is none; ``weights`` is None where a mean does not count."""
    assert len(losses) == math.prod(shape)
    zero = torch.zeros((), dtype=dtype)
    present = torch.tensor([loss is not None for loss in losses], dtype=torch.bool)
    if reduction == "none":
        stacked = (
            torch.stack([zero if loss is None else loss.to(dtype) for loss in losses])
            if losses
            else zero.new_zeros(0)
        )
        return stacked.reshape(shape), present.reshape(shape)
    counted = [
        loss is not None and (weights is None or weights[i] is not None) for i, loss in enumerate(losses)
    ]
    left = [loss for loss, counts in zip(losses, counted, strict=True) if counts]
    if reduction == "sum":
        return sum(left, zero), NUMBER
    if not left:
        return zero + torch.nan, NUMBER
    divisor = len(left) if weights is None else sum(w for w in weights if w is not None)
    return (sum(left, zero) / divisor).to(dtype), NUMBER
