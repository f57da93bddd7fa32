"""Creation: what is like a tensor has its pattern, also if it is drawn; and sums to a size, which are reductions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.deletion_oracle import reduce_by_deletion
from tests.laws.slices import Result

__all__ = ["creation", "gating", "random", "sum_to_size"]


def creation(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """torch's tensor: of the pattern of its model, or specified; a masked value to be written brings its mask along."""
    args, kwargs = call.with_tensors(leaves)
    values = entry.function(*args, **kwargs)
    mask = torch.ones(values.shape, dtype=torch.bool)
    if entry.operation.name.endswith("_like"):
        mask = masks[0]
    elif entry.operation.name == "fill" and len(masks) > 1:
        mask = masks[1].expand(values.shape)
    return values, [mask]


def sum_to_size(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """The dimensions that broadcasting would add, and those it would stretch, are summed by deletion."""
    (x,), (mask,) = leaves, masks
    args, kwargs = call.with_tensors([x])
    shape = entry.function(*args, **kwargs).shape
    added = x.ndim - len(shape)
    dims = [d for d in range(x.ndim) if d < added or (shape[d - added] == 1 and x.shape[d] != 1)]
    if not dims:
        return x if shape else x.sum(), [mask]
    values, (known,) = reduce_by_deletion("sum", torch.sum, x, mask, dim=dims, keepdim=True)
    # a size is no dtype: sums of integers are wider, here as in torch.sum
    return values.reshape(shape), [known.reshape(shape)]


def random(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """The database seeds each call; entries that are drawn independently of others do not depend on the mask."""
    if entry.operation.name == "multinomial":
        return drawn_positions(entry, call, leaves[0], masks[0])
    args, kwargs = call.with_tensors(leaves)
    values = entry.function(*args, **kwargs)
    mask = masks[0]
    for other in masks[1:]:
        mask = mask & other
    return values, [mask.expand(part.shape) for part in parts_of(values)]


def drawn_positions(entry: Entry, call: Call, x: Tensor, mask: Tensor) -> Result:
    """Weights of 0 are never drawn while there are others; a row of nothing draws nothing."""
    safe = torch.where(mask, x, torch.where(mask.any(-1, keepdim=True), 0.0, 1.0))
    args, kwargs = call.with_tensors([safe])
    values = entry.function(*args, **kwargs)
    return values, [mask.gather(-1, values)]


def gating(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """An entry and its gate."""
    args, kwargs = call.with_tensors(leaves)
    values = entry.function(*args, **kwargs)
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    entry_mask, gate_mask = masks[0].chunk(2, dim)
    return values, [entry_mask & gate_mask]
