"""Products with stored matrices: one multiplication for each product of specified factors, none for the others.

A stored and a dense factor give a dense result, where rows without entries are unspecified; two stored factors
give a stored one (CSR or CSC like the left factor, else COO).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns import CoordinatePattern
from maskgrad.patterns.stored import ravel_multi_index, unravel_index
from maskgrad.semantics.contractions import multiply
from maskgrad.semantics.entries import Entries, as_entries, rearranged
from maskgrad.semantics.signatures import bound
from maskgrad.semantics.stored.elementwise import apply
from maskgrad.semantics.stored.entries import (
    StoredEntries,
    flat,
    from_places,
    is_masked,
    shape_of,
    widened,
    with_values,
)
from maskgrad.semantics.stored.indexing import meeting
from maskgrad.semantics.stored.reductions import over_groups, total
from maskgrad.semantics.stored.views import diagonal, expand, reshape, squeeze, transpose, unsqueeze

__all__ = ["RULES", "matmul"]

#: The ranks required by the special cases of matmul.
RANKS = {"mm": (2, 2), "bmm": (3, 3), "mv": (2, 1)}


def matmul(left: Any, right: Any) -> Any:
    """``left @ right`` with at least one stored factor: vectors, matrices, and batches of matrices."""
    left, right = (flat(f) if isinstance(f, StoredEntries) else f for f in (left, right))
    _check(left, right)
    if isinstance(left, StoredEntries) and len(left.shape) == 1:
        return squeeze(matmul(unsqueeze(left, 0), right), -2 if len(shape_of(right)) > 1 else -1)
    if isinstance(right, StoredEntries) and len(right.shape) == 1:
        return squeeze(matmul(left, unsqueeze(right, 1)), -1)
    if isinstance(left, StoredEntries) and isinstance(right, StoredEntries):
        return _both(left, right)
    if isinstance(right, StoredEntries):
        turned = transpose(right, -2, -1)
        if len(shape_of(left)) == 1:
            return _times_dense(turned, left)
        return transpose(_times_dense(turned, transpose(left, -2, -1)), -2, -1)
    return _times_dense(left, right)


def _check(left: Any, right: Any) -> None:
    shapes = shape_of(left), shape_of(right)
    if not shapes[0] or not shapes[1]:
        raise RuntimeError("both arguments to matmul need to be at least 1D")
    if shapes[0][-1] != shapes[1][-2 if len(shapes[1]) > 1 else -1]:
        raise RuntimeError(
            f"matmul: the inner sizes must agree, found {tuple(shapes[0])} and {tuple(shapes[1])}"
        )
    dtypes = [f.values.dtype if is_masked(f) else f.dtype for f in (left, right)]
    if dtypes[0] != dtypes[1]:
        raise RuntimeError(
            f"expected both factors to have the same dtype, but got: {dtypes[0]} != {dtypes[1]}"
        )
    if dtypes[0] == torch.bool:
        raise RuntimeError("matmul is not implemented for Booleans")


def _times_dense(left: StoredEntries, right: Entries | Tensor) -> Entries:
    """(…, n, k) stored times (…, k, p) dense: each entry scales one row of the partner."""
    values, mask = right if isinstance(right, Entries) else (right, None)
    if values.ndim == 1:
        side: Entries = squeeze(_times_dense(left, unsqueeze(right, 1)), -1)
        return side
    batches, outer = left.sizes[:-2], torch.broadcast_shapes(left.sizes[:-2], values.shape[:-2])
    if not batches and outer:  # the matrix applies to every batch: their columns are concatenated
        side = _times_dense(left, rearranged(right, lambda t: t.movedim(-2, 0).flatten(1)))
        shape = (left.sizes[0], *outer, values.shape[-1])
        return Entries(*[t.reshape(shape).movedim(0, -2) for t in side])
    if tuple(outer) != tuple(batches):
        left = expand(left, (*outer, *left.sizes[-2:]))
    *batch, row, column = left.pattern.coordinates()
    at: tuple[Tensor, ...] = (column,)
    if values.ndim > 2:
        at = (*batch, column)
        values = values.expand(*outer, *values.shape[-2:])
        mask = mask if mask is None else mask.expand(values.shape)
    place = ravel_multi_index(torch.stack([*batch, row]), left.sizes[:-1])
    number = math.prod(left.sizes[:-1])
    factor, partner = widened(left.entries).unsqueeze(1), widened(values[at])
    if mask is None:
        products = factor * partner
        reached = torch.zeros(number, dtype=torch.bool, device=row.device).index_fill(0, place, True)
        covered = reached.unsqueeze(1).expand(number, values.shape[-1])
    else:
        known = mask[at]
        products = torch.where(known, factor, 0) * torch.where(known, partner, 0)
        counts = torch.zeros((number, values.shape[-1]), dtype=torch.int32, device=row.device)
        covered = counts.index_add(0, place, known.int()) > 0
    added = products.new_zeros((number, values.shape[-1])).index_add(0, place, products).to(values.dtype)
    shape = (*left.sizes[:-1], values.shape[-1])
    return Entries(added.reshape(shape), covered.reshape(shape))


def _both(left: StoredEntries, right: StoredEntries) -> StoredEntries:
    """Two stored factors: each entry of the left one is multiplied by one row of the right one."""
    batches = torch.broadcast_shapes(left.sizes[:-2], right.sizes[:-2])
    left, right = (
        f if tuple(f.sizes[:-2]) == tuple(batches) else expand(f, (*batches, *f.sizes[-2:]))
        for f in (left, right)
    )
    sizes = (*batches, left.sizes[-2], right.sizes[-1])
    *batch, row, inner = left.pattern.coordinates()
    *others, line, column = right.pattern.coordinates()
    grid = (*batches, left.sizes[-1])
    inner = ravel_multi_index(torch.stack([*batch, inner]), grid)
    line = ravel_multi_index(torch.stack([*others, line]), grid)
    first, second = meeting(inner, line)
    products = widened(left.entries)[first] * widened(right.entries)[second]
    keys = ravel_multi_index(torch.stack([*[b[first] for b in batch], row[first], column[second]]), sizes)
    distinct, index = torch.unique(keys, return_inverse=True)
    added = products.new_zeros(distinct.shape[0]).index_add(0, index, products)
    return from_places(unravel_index(distinct, sizes), added.to(left.values.dtype), sizes, left.pattern)


def _rule(name: str) -> Callable[..., Any]:
    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first = [kwargs[k] for k in ("input", "self") if k in kwargs]
        left, right = *args, *first, *[v for k, v in kwargs.items() if k not in ("input", "self")]
        ranks = len(shape_of(left)), len(shape_of(right))
        if ranks != RANKS.get(name, ranks):
            raise RuntimeError(f"{name}: the factors must have {RANKS[name]} dimensions, found {ranks}")
        return matmul(left, right)

    return body


def _scalar_product(conjugated: bool) -> Callable[..., Any]:
    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = bound(
            "input other dim",
            args,
            {{"tensor": "other", "y": "other"}.get(k, k): v for k, v in kwargs.items()},
        )
        x, y = arguments["input"], arguments["other"]
        along = function is torch.linalg.vecdot
        if not along and (len(shape_of(x)) != 1 or shape_of(x) != shape_of(y)):
            raise RuntimeError(
                f"dot: expected two vectors of one length, found {tuple(shape_of(x))} and {tuple(shape_of(y))}"
            )
        products = apply(lambda v: (v[0].conj() if conjugated else v[0]) * v[1], [x, y])
        return over_groups(total)(products, arguments.get("dim", -1) if along else None)

    return body


def _inner(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``inner``: over the last dimension of both, each vector of one with each of the other."""
    x, y = bound("input other", args, kwargs).values()
    ranks = len(shape_of(x)), len(shape_of(y))
    if 0 in ranks:
        return apply(lambda v: v[0] * v[1], [x, y])
    if ranks == (1, 1):
        return _scalar_product(False)(torch.dot, (x, y), {})
    shape = (*shape_of(x)[:-1], *shape_of(y)[:-1])
    x, y = (
        f if rank < 3 else reshape(f, (-1, shape_of(f)[-1])) for f, rank in zip((x, y), ranks, strict=True)
    )
    found = matmul(x, y if ranks[1] == 1 else transpose(y, -2, -1))
    return reshape(found, shape) if max(ranks) > 2 else found


def _outer(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, y = bound("input vec2", args, kwargs).values()
    if all(isinstance(v, StoredEntries) and len(v.sizes) == len(v.shape) == 1 for v in (x, y)):
        rows, columns = x.pattern.coordinates()[0], y.pattern.coordinates()[0]
        places = rows.repeat_interleave(len(columns)), columns.repeat(len(rows))
        entries = (x.entries[:, None] * y.entries).reshape(-1)
        return StoredEntries(entries, CoordinatePattern(torch.stack(places), (*x.sizes, *y.sizes)))
    return apply(lambda v: v[0] * v[1], [reshape(x, (-1, 1)), reshape(y, (1, -1))])


def _product(left: Any, right: Any) -> Any:
    if isinstance(left, StoredEntries) or isinstance(right, StoredEntries):
        return matmul(left, right)
    return multiply(left, right) if is_masked(left) or is_masked(right) else left @ right


def _plus(a: Any, b: Any) -> Any:
    """The sum of two operands, stored if one of them is."""
    if isinstance(a, StoredEntries) or isinstance(b, StoredEntries):
        return apply(lambda v: v[0] + v[1], [a, b])
    (x, known), (y, also) = as_entries(a), as_entries(b)
    return Entries(torch.where(known, x, 0) + torch.where(also, y, 0), known & also)


def _times(x: Any, number: Any) -> Any:
    return with_values(x, x.values * number) if is_masked(x) else x * number


def _plus_product(names: str) -> Callable[..., Any]:
    """``beta * input + alpha * product``: specified where the product and the input are; beta = 0 ignores the input."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = bound(names, args, kwargs)
        input, left, right = (arguments[name] for name in names.split())
        beta, alpha = arguments.get("beta", 1), arguments.get("alpha", 1)
        product = _product(left, right)
        product = product if alpha == 1 else _times(product, alpha)
        if beta == 0:
            return product
        return _plus(input if beta == 1 else _times(input, beta), product)

    return body


def _linear(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``input @ weight.T + bias``; an unspecified bias leaves its outputs unspecified."""
    arguments = bound("input weight bias", args, kwargs)
    weight, bias = arguments["weight"], arguments.get("bias")
    if len(shape_of(weight)) > 1:
        weight = transpose(weight, -2, -1)
    result = _product(arguments["input"], weight)
    return result if bias is None else _plus(result, bias)


def _trace(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (x,) = bound("input", args, kwargs).values()
    if len(x.shape) != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {len(x.shape)}")
    return over_groups(total)(diagonal(x))


RULES: dict[str, Callable[..., Any]] = {
    **{name: _rule(name) for name in ("matmul", "mm", "bmm", "mv")},
    "dot": _scalar_product(False),
    "vdot": _scalar_product(True),
    "linalg.vecdot": _scalar_product(True),
    "inner": _inner,
    "outer": _outer,
    "linear": _linear,
    "trace": _trace,
    "addmm": _plus_product("input mat1 mat2"),
    "addmv": _plus_product("input mat vec"),
    "baddbmm": _plus_product("input batch1 batch2"),
}
