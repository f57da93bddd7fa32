"""Random operations and gates, elementwise: what torch draws with the same seed, where the operands are specified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry

__all__ = ["gating", "random"]


def random(
    entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]
) -> tuple[Any, list[Tensor]]:
    """The database seeds each call; entries that are drawn independently of others do not depend on the mask."""
    if entry.operation.name == "multinomial":
        return drawn_positions(entry, call, leaves[0], masks[0])
    args, kwargs = call.with_tensors(leaves)
    values = entry.function(*args, **kwargs)
    mask = masks[0]
    for other in masks[1:]:
        mask = mask & other
    return values, [mask.expand(part.shape) for part in parts_of(values)]


def drawn_positions(entry: Entry, call: Call, x: Tensor, mask: Tensor) -> tuple[Any, list[Tensor]]:
    """Weights of 0 are never drawn while there are others; a row of nothing draws nothing."""
    safe = torch.where(mask, x, torch.where(mask.any(-1, keepdim=True), 0.0, 1.0))
    args, kwargs = call.with_tensors([safe])
    values = entry.function(*args, **kwargs)
    return values, [mask.gather(-1, values)]


def gating(
    entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]
) -> tuple[Any, list[Tensor]]:
    """An entry and its gate."""
    args, kwargs = call.with_tensors(leaves)
    values = entry.function(*args, **kwargs)
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    entry_mask, gate_mask = masks[0].chunk(2, dim)
    return values, [entry_mask & gate_mask]
