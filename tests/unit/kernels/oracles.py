"""What the kernels compute, said with Python loops over numbers; slow, and without PyTorch's arithmetic."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

GARBAGE = (math.nan, math.inf, -math.inf, 1e38)


def specified(
    values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool
) -> tuple[list[list], list[int]]:
    """For each entry of the result, the list of the entries it is made of; and the shape of the result."""
    dims = {d % values.ndim for d in dim} if values.ndim else set()
    groups: dict[tuple[int, ...], list] = {}
    kept = [range(1) if d in dims else range(n) for d, n in enumerate(values.shape)]
    for place in itertools.product(*kept):
        groups[place] = []
    for place in itertools.product(*(range(n) for n in values.shape)):
        if mask[place]:
            groups[tuple(0 if d in dims else i for d, i in enumerate(place))].append(values[place].item())
    shape = [1 if d in dims else n for d, n in enumerate(values.shape) if keepdim or d not in dims]
    return list(groups.values()), shape


def reduction(
    name: str, values: Tensor, mask: Tensor, dim: tuple[int, ...], keepdim: bool
) -> tuple[Tensor, Tensor]:
    groups, shape = specified(values, mask, dim, keepdim)
    add = math.fsum if values.is_floating_point() else sum
    results = [add(g) / (len(g) or 1) if name == "masked_mean" else add(g) for g in groups]
    wide = torch.float64 if values.is_floating_point() else torch.int64
    return (
        torch.tensor(results, dtype=wide).reshape(shape),
        torch.tensor([len(g) for g in groups], dtype=torch.int64).reshape(shape),
    )


def merged(indices: Tensor, values: Tensor, reduce: str) -> tuple[list[int], Tensor]:
    rows = sorted(set(indices.tolist()))
    results = []
    for row in rows:
        entries = values[indices == row].double()
        results.append(
            {
                "sum": entries.sum(0),
                "mean": entries.mean(0),
                "amax": entries.amax(0),
                "amin": entries.amin(0),
            }[reduce]
        )
    return rows, torch.stack(results) if results else values.double()


def soiled(values: Tensor, mask: Tensor, garbage: float) -> Tensor:
    """``values`` with ``garbage`` under the mask (the largest number for integers)."""
    if not values.is_floating_point():
        garbage = torch.iinfo(values.dtype).max if values.dtype != torch.bool else True
    return values.masked_fill(
        ~mask, min(garbage, torch.finfo(values.dtype).max) if garbage == 1e38 else garbage
    )
