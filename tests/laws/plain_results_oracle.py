"""Results that are plain, for nothing in them can be missing: positions of entries, and whether tensors are equal."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry

__all__ = ["equality", "positions"]

#: In place of a mask, it says that the result is plain.
PLAIN = None
PlainResult = tuple[Any, list[None]]


def positions(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> PlainResult:
    """The index tuples of the specified entries that differ from zero, in row-major order."""
    x, mask = leaves[0], masks[0]
    everywhere = itertools.product(*(range(size) for size in x.shape))
    found = [index for index in everywhere if mask[index] and x[index] != 0]
    _, kwargs = call.with_tensors(leaves)
    rows = torch.tensor(found, dtype=torch.int64).reshape(len(found), x.ndim)
    if "size" in kwargs:
        size = kwargs["size"]
        spare = torch.full((size, x.ndim), kwargs.get("fill_value", -1))
        rows = torch.cat([rows, spare])[:size]
    if kwargs.get("as_tuple"):
        columns = rows.unbind(1) if x.ndim else (torch.zeros(len(found), dtype=torch.int64),)
        return tuple(columns), [PLAIN for _ in columns]
    return rows, [PLAIN]


def equality(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> PlainResult:
    """The same entries are specified, and there torch says that they are equal."""
    args, kwargs = call.with_tensors(leaves)
    same_shape = leaves[0].shape == leaves[1].shape
    if entry.operation.name == "equal" and not same_shape:
        return False, [PLAIN]
    left, right = torch.broadcast_tensors(*masks)
    if (left != right).any():
        return False, [PLAIN]
    chosen = [leaf.expand(left.shape)[left] for leaf in leaves]
    args, kwargs = call.with_tensors(chosen)
    return entry.function(*args, **kwargs), [PLAIN]
