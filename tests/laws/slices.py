"""Law 3 for operations along one dimension: a rule for vectors, applied to every slice and put together again."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.laws.any_type.comparison import parts_of
from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry

__all__ = [
    "Part", "Result", "arguments_of", "given", "in_their_places", "original_positions", "padded", "per_group",
    "per_slice",
]  # fmt: skip

#: Values of a vector, and which of them are specified.
Part = tuple[Tensor, Tensor]
Result = tuple[Any, list[Tensor]]


def arguments_of(entry: Entry, call: Call, tensors: Sequence[Any], names: str) -> dict[str, Any]:
    """The call's arguments by name."""
    args, kwargs = call.with_tensors(tensors)
    return dict(zip(names.split(), args, strict=False)) | kwargs


def given(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call of a Python function by name, defaults included."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def per_slice(rule: Callable[[Tensor, Tensor], list[Part]], x: Tensor, mask: Tensor, dim: int) -> list[Part]:
    """The parts that ``rule`` makes of each slice along ``dim`` and its mask, each part in the place of its slice."""
    if x.ndim == 0:
        return [
            (values.reshape(()), known.reshape(())) for values, known in rule(x.reshape(1), mask.reshape(1))
        ]
    shape = list(x.movedim(dim, -1).shape[:-1])
    rows, bits = (t.movedim(dim, -1).reshape(math.prod(shape), x.shape[dim]) for t in (x, mask))
    columns = [rule(vector, present) for vector, present in zip(rows, bits, strict=True)]
    if not columns:  # what an empty slice gives tells how many results there are, and how long they are
        model = rule(x.new_zeros(x.shape[dim]), mask.new_zeros(x.shape[dim]))
        return [
            (
                part.new_zeros(*shape, part.numel()).movedim(-1, dim),
                known.new_zeros(*shape, known.numel()).movedim(-1, dim),
            )
            for part, known in model
        ]
    found = []
    for parts in zip(*columns, strict=True):
        stacked = [
            torch.stack(list(tensors)).reshape(*shape, parts[0][0].numel()).movedim(-1, dim)
            for tensors in zip(*parts, strict=True)
        ]
        found.append((stacked[0], stacked[1]))
    return found


def per_group(
    rule: Callable[[Tensor, Tensor], list[Part]], x: Tensor, mask: Tensor, dims: Sequence[int]
) -> list[Part]:
    """The same for each group along ``dims``, which are one dimension of the parts, the last."""
    if x.ndim == 0:
        return per_slice(rule, x, mask, 0)
    dims = [d % x.ndim for d in dims]
    order = [*(d for d in range(x.ndim) if d not in dims), *dims]
    return per_slice(rule, *(t.permute(order).flatten(x.ndim - len(dims)) for t in (x, mask)), -1)


def in_their_places(function: Callable[[Tensor], Any]) -> Callable[[Tensor, Tensor], list[Part]]:
    """A rule: results of what is left go where their entries stood, and so do the positions that come second."""

    def rule(vector: Tensor, present: Tensor) -> list[Part]:
        where, found = original_positions(present), []
        for i, part in enumerate(parts_of(function(vector[present]))):
            values = where[part] if i == 1 else part
            found.append((torch.zeros(len(vector), dtype=part.dtype).index_put((where,), values), present))
        return found

    return rule


def original_positions(mask: Tensor) -> Tensor:
    """Where the entries that are left stood."""
    return mask.nonzero().squeeze(1)


def padded(left: Tensor, length: int) -> Part:
    """What is left, and then unspecified entries."""
    missing = length - len(left)
    return torch.cat([left, left.new_zeros(missing)]), torch.arange(length) < len(left)
