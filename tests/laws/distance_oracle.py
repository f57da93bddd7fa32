"""Distances, one pair of vectors at a time: torch's own function on the coordinates that both specify."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.comparison import NUMBER
from tests.laws.deletion_oracle import nothing_is_left

__all__ = ["distance"]

Result = tuple[Tensor, list[Tensor]]


def distance(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Find the pairs, delete, measure."""
    args, kwargs = call.with_tensors(leaves)
    options = {k: v for k, v in kwargs.items() if not isinstance(v, Tensor)}
    name = entry.operation.name.rpartition(".")[2]
    dense = entry.function(*args, **kwargs)
    if name == "pdist":
        return pdist(entry.function, leaves[0], masks[0], list(args[1:]), options, dense)
    numbers = [arg for arg in args if not isinstance(arg, Tensor)]
    if name == "cdist":
        return cdist(entry.function, leaves, masks, numbers, options)
    names = {"dist": "p", "pairwise_distance": "p eps keepdim", "cosine_similarity": "dim eps"}[name]
    options |= dict(zip(names.split(), numbers, strict=False))
    (x, y), (x_mask, y_mask) = torch.broadcast_tensors(*leaves), torch.broadcast_tensors(*masks)
    both = x_mask & y_mask
    if name == "dist":
        nothing = nothing_is_left(lambda empty: entry.function(empty, empty, **options), leaves[0])
        some = measured(entry.function, x[both], y[both], options, dense)
        return some if both.any() or nothing is None else nothing, [both.any() if nothing is None else NUMBER]
    keepdim, dim = options.pop("keepdim", False), options.pop("dim", 1 if name == "cosine_similarity" else -1)
    along = {"dim": 0} if name == "cosine_similarity" else {}
    if both.ndim == 0:
        return dense, [both]
    rows = [(m := t.movedim(dim, -1)).reshape(math.prod(m.shape[:-1]), t.shape[dim]) for t in (x, y, both)]
    found = [
        measured(entry.function, a[m], b[m], options | along, dense) for a, b, m in zip(*rows, strict=True)
    ]
    mask = both.any(dim)
    if not found:
        return dense, [mask.reshape(dense.shape)]
    values = torch.stack(found).reshape(mask.shape)
    if keepdim:
        values, mask = values.unsqueeze(dim), mask.unsqueeze(dim)
    return values, [mask]


def measured(function: Callable[..., Tensor], a: Tensor, b: Tensor, options: Any, dense: Tensor) -> Tensor:
    """torch on what is left; where nothing is, a zero without gradient."""
    if not a.numel():
        return torch.zeros((), dtype=dense.dtype) + (a.sum() + b.sum()) * 0
    return function(a, b, **options).reshape(())


def cdist(
    function: Callable[..., Tensor],
    leaves: Sequence[Tensor],
    masks: Sequence[Tensor],
    numbers: Any,
    options: Any,
) -> Result:
    """Every row with every row, each pair on its own."""
    (x, y), (x_mask, y_mask) = leaves, masks
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    count = math.prod(batch)
    P, R, M = x.shape[-2], y.shape[-2], x.shape[-1]
    xs, x_masks = (t.expand(*batch, P, M).reshape(count, P, M) for t in (x, x_mask))
    ys, y_masks = (t.expand(*batch, R, M).reshape(count, R, M) for t in (y, y_mask))
    values, known = [], []
    for b in range(xs.shape[0]):
        for i in range(P):
            for j in range(R):
                both = x_masks[b, i] & y_masks[b, j]
                known.append(both.any())
                pair = xs[b, i][both][None], ys[b, j][both][None]
                values.append(
                    function(*pair, *numbers, **options).reshape(())
                    if both.any()
                    else (pair[0].sum() + pair[1].sum()) * 0
                )
    shape = (*batch, P, R)
    if not values:
        return (x.sum() + y.sum()) * 0 + torch.zeros(shape, dtype=x.dtype), [
            torch.zeros(shape, dtype=torch.bool)
        ]
    return torch.stack(values).reshape(shape), [torch.stack(known).reshape(shape)]


def pdist(
    function: Callable[..., Tensor], x: Tensor, mask: Tensor, args: Any, options: Any, dense: Tensor
) -> Result:
    """Each pair of rows as a tensor of two rows."""
    values, known = [], []
    for i in range(x.shape[0]):
        for j in range(i + 1, x.shape[0]):
            both = mask[i] & mask[j]
            known.append(both.any())
            pair = x[[i, j]][:, both]
            values.append(function(pair, *args, **options).reshape(()) if both.any() else pair.sum() * 0)
    if not values:
        return dense, [torch.ones(dense.shape, dtype=torch.bool)]
    return torch.stack(values), [torch.stack(known)]
