"""Chains of matrices, cross products, matrix norms, covariances: each entry of the result on its own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.comparison import NUMBER
from tests.laws.contraction_oracle import sum_of_products
from tests.laws.deletion_oracle import nothing_is_left

__all__ = ["LINEAR_ALGEBRA"]

Result = tuple[Tensor, list[Tensor]]


def chain(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """All products along all paths, from left to right."""
    pairs = list(zip(leaves, masks, strict=True))
    values, mask = functools.reduce(lambda one, other: sum_of_products(*one, *other), pairs)
    return values, [mask]


def matrix_power(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    args, kwargs = call.with_tensors(leaves)
    n = kwargs.get("n", args[1] if len(args) > 1 else None)
    if n == 0:
        return entry.function(*args, **kwargs), [torch.ones_like(masks[0])]
    return chain(entry, call, [leaves[0]] * n, [masks[0]] * n)


def cross(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Component i needs the components j and k of both."""
    args, kwargs = call.with_tensors(leaves)
    values = entry.function(*args, **kwargs)
    dim = kwargs.get("dim", args[2] if len(args) > 2 else -1 if "linalg" in entry.name else None)
    if dim is None:
        dim = list(leaves[0].shape).index(3)
    both = torch.logical_and(*torch.broadcast_tensors(*masks)).movedim(dim, 0)
    mask = torch.stack([both[1] & both[2], both[2] & both[0], both[0] & both[1]]).movedim(0, dim)
    return values, [mask]


def trace(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    known = masks[0].diagonal()
    return leaves[0].diagonal()[known].sum(), [NUMBER]


def vander(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    args, kwargs = call.with_tensors(leaves)
    values = entry.function(*args, **kwargs)
    return values, [masks[0].unsqueeze(-1).expand(values.shape)]


def matrix_norm(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """By deletion: a row that has nothing left is deleted, too."""
    args, kwargs = call.with_tensors(leaves)
    norm = entry.operation.name == "linalg.norm"
    options = dict(zip(("ord", "dim", "keepdim"), args[1:], strict=False)) | kwargs
    x, mask = leaves[0], masks[0]
    ord, keepdim = options.get("ord", None if norm else "fro"), options.get("keepdim", False)
    dim = options.get("dim", None if norm else (-2, -1))
    dims = (
        list(range(x.ndim))
        if dim is None
        else [d % max(x.ndim, 1) for d in ([dim] if isinstance(dim, int) else dim)]
    )
    number = options.get("dim") is None and (not keepdim or not x.ndim)
    if number:
        empty = x.detach().new_zeros([0] * x.ndim if x.ndim == 2 else [0])
        nothing = nothing_is_left(lambda _: entry.function(empty, *args[1:], **kwargs), x)
        number = nothing is not None and x.ndim == len(dims)
    if not x.ndim:
        return entry.function(*args, **kwargs) if mask or not number else nothing, [
            NUMBER if number else mask
        ]
    kept = [d for d in range(x.ndim) if d not in dims]
    size = [x.shape[d] for d in dims]
    count = math.prod(x.shape[d] for d in kept)
    # each slice as (*dims)
    slices, bits = (t.permute(*kept, *dims).reshape(count, *size) for t in (x, mask))
    two = len(dims) == 2 and ord is not None
    values = torch.stack(
        [norm_of(s, m, ord, two, options.get("dtype")) for s, m in zip(slices, bits, strict=True)]
    )
    shape = [1 if d in dims else x.shape[d] for d in range(x.ndim) if keepdim or d not in dims]
    if number:
        return values.reshape(()) if mask.any() else nothing, [NUMBER]
    return values.reshape(shape), [bits.flatten(1).any(1).reshape(shape)]


def norm_of(x: Tensor, mask: Tensor, ord: Any, matrix: bool, dtype: torch.dtype | None) -> Tensor:
    if not mask.any():
        return torch.zeros_like(torch.linalg.vector_norm(x.flatten()[:1], dtype=dtype)) + x.sum().abs() * 0
    if not matrix or ord == "fro":
        return torch.linalg.vector_norm(x[mask], 2 if ord in (None, "fro") else ord, dtype=dtype)
    rows, bits = (x.mT, mask.mT) if abs(ord) == 1 else (x, mask)
    sums = torch.stack(
        [torch.linalg.vector_norm(r[m], 1, dtype=dtype) for r, m in zip(rows, bits, strict=True) if m.any()]
    )
    return sums.amax() if ord > 0 else sums.amin()


def coefficients(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """Each pair of variables on its own, over the observations that have both."""
    args, kwargs = call.with_tensors(leaves)
    names = [name for name in ("fweights", "aweights") if kwargs.get(name) is not None]
    x, mask = leaves[0], masks[0]
    if x.ndim < 2:
        x, mask = x.reshape(1, -1), mask.reshape(1, -1)
    for weight_mask in masks[1:]:
        mask = mask & weight_mask
    options = {k: v for k, v in kwargs.items() if not isinstance(v, Tensor)}
    rows = [
        [
            coefficient(entry.function, x, mask, i, j, dict(zip(names, leaves[1:], strict=True)), options)
            for j in range(x.shape[0])
        ]
        for i in range(x.shape[0])
    ]
    present = mask.double()
    repeated = present * kwargs["fweights"] if "fweights" in names else present
    counts = repeated @ present.T
    known = counts > max(options.get("correction", 1), 0)
    if not rows:
        return entry.function(*args, **kwargs), [known]
    values = torch.stack([torch.stack(row) for row in rows]).squeeze()
    # without degrees of freedom, which weights can take away, too, there is no estimate
    return values, [known.squeeze() & (values.isfinite() if entry.name == "cov" else True)]


def coefficient(
    function: Callable[..., Tensor], x: Tensor, mask: Tensor, i: int, j: int, weights: Any, options: Any
) -> Tensor:
    both = mask[i] & mask[j]
    dense = torch.cov(x[:, :2].detach())
    if not both.any():
        return torch.zeros((), dtype=dense.dtype) + x.sum() * 0
    left = {name: weight[both] for name, weight in weights.items()}
    pair = x[[i, j]][:, both]
    # torch writes into its input if it has one observation and weights
    found = function(pair.clone(), **left, **options)[0, 1]
    if found.isfinite():
        return found
    # No NaN may go back to variables that take part in other pairs. One observation is 0 / 0, though torch may round.
    return found.detach() if both.sum() > 1 else torch.full_like(found, torch.nan, requires_grad=False)


LINEAR_ALGEBRA = {
    "linalg.multi_dot": chain,
    "chain_matmul": chain,
    "linalg.matrix_power": matrix_power,
    "cross": cross,
    "linalg.cross": cross,
    "trace": trace,
    "vander": vander,
    "linalg.vander": vander,
    "linalg.matrix_norm": matrix_norm,
    "linalg.norm": matrix_norm,
    "cov": coefficients,
    "corrcoef": coefficients,
}
