"""Chains of matrices, cross products, matrix norms, covariances: each entry of the result on its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.contraction_oracle import products
from tests.laws.deletion_oracle import nothing_is_left, reduce_by_deletion
from tests.laws.evaluation import NUMBER

__all__ = ["LINEAR_ALGEBRA"]

Result = tuple[Tensor, list[Tensor]]


def chain(entry: Entry, call: Call, leaves: Sequence[Tensor], masks: Sequence[Tensor]) -> Result:
    """All products along all paths; the power 0 makes entries of its own."""
    values, count = products(entry, call, leaves, masks)
    args, kwargs = call.with_tensors(leaves)
    own = entry.operation.name == "linalg.matrix_power" and 0 in (kwargs.get("n"), *args[1:])
    return values, [torch.ones_like(masks[0]) if own else count > 0]


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
    """By deletion, once or along one dimension after the other: a row that has nothing left is deleted, too."""
    args, kwargs = call.with_tensors(leaves)
    x, mask = leaves[0], masks[0]
    options = dict(zip(("ord", "dim", "keepdim"), args[1:], strict=False)) | kwargs
    ord, keepdim = options.pop("ord", None), options.pop("keepdim", False)
    dim = options.pop("dim", None)
    if dim is None and entry.operation.name == "linalg.matrix_norm" and x.ndim > 2:
        dim = (-2, -1)
    dims = [dim] if isinstance(dim, int) else dim or range(x.ndim)
    if len(dims) != 2 or ord in (None, "fro"):
        options["ord"] = 2 if ord in (None, "fro") else ord
        norm = torch.linalg.vector_norm
        return reduce_by_deletion("linalg.vector_norm", norm, x, mask, dim=dim, keepdim=keepdim, **options)
    first, then = dims if abs(ord) == 1 else reversed(dims)
    options |= {"ord": 1, "dim": first, "keepdim": True}
    sums, (known,) = reduce_by_deletion("linalg.vector_norm", torch.linalg.vector_norm, x, mask, **options)
    extreme = ("amax", torch.amax) if ord > 0 else ("amin", torch.amin)
    values, (known,) = reduce_by_deletion(*extreme, sums, known, dim=then, keepdim=True)
    if dim is None and not keepdim:
        nothing = nothing_is_left(
            lambda _: entry.function(x.detach().new_zeros(0, 0), *args[1:], **kwargs), x
        )
        if nothing is not None:
            return values.reshape(()) if mask.any() else nothing, [NUMBER]
    gone = () if keepdim else tuple(d % x.ndim for d in dims)
    return values.squeeze(gone), [known.squeeze(gone)]


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
    "linalg.matrix_power": chain,
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
