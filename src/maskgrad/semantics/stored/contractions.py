"""Products with stored matrices: one multiplication for each product of specified factors, none for the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.errors import UnsupportedLayoutError
from maskgrad.patterns.stored import keys_of
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.stored.entries import Stored, from_places, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RULES", "matmul"]


def matmul(left: Any, right: Any) -> Any:
    """``left @ right`` with at least one stored matrix, or batch of matrices."""
    for operand in (left, right):
        if isinstance(operand, Stored) and (operand.entries.ndim > 1 or len(operand.pattern.sizes) < 2):
            raise UnsupportedLayoutError(
                "a product with a vector or a hybrid tensor", operand.pattern.layout, tuple(operand.shape)
            )
    if isinstance(left, Stored) and isinstance(right, Stored):
        return _both(left, right)
    if isinstance(right, Stored):
        flipped = matmul(
            transposed(right), left if shape_of(left).numel() and len(shape_of(left)) < 2 else _turned(left)
        )
        return flipped if len(shape_of(left)) < 2 else _turned(flipped)
    return _times_dense(left, right)


def transposed(x: Stored) -> Stored:
    """The last two dimensions exchanged."""
    coordinates, sizes = x.pattern.coordinates(), x.pattern.sizes
    order = [*range(len(sizes) - 2), len(sizes) - 1, len(sizes) - 2]
    return from_places(coordinates[order], x.entries, tuple(sizes[d] for d in order))


def _turned(x: Any) -> Any:
    if isinstance(x, Entries):
        return Entries(x.values.mT, x.mask.mT)
    return x.mT


def _times_dense(left: Stored, right: Entries | Tensor) -> Entries:
    """(…, n, k) stored times (…, k, p) dense: each entry scales one row of the partner."""
    *batch, row, column = left.pattern.coordinates()
    *batches, height, width = left.pattern.sizes
    values, mask = right if isinstance(right, Entries) else (right, None)
    vector = values.ndim == 1
    if values.shape[0 if vector else -2] != width:
        raise RuntimeError(
            f"matmul: the inner sizes must agree, found {tuple(left.shape)} and {tuple(values.shape)}"
        )
    if vector:
        values, mask = values.unsqueeze(1), mask if mask is None else mask.unsqueeze(1)
    outer = torch.broadcast_shapes(tuple(batches), values.shape[:-2])
    if tuple(outer) != tuple(batches):
        raise UnsupportedLayoutError(
            "a product that broadcasts the sparse matrix", left.pattern.layout, tuple(left.shape)
        )
    at = (*batch, column) if values.ndim > 2 else (column,)
    if values.ndim > 2:
        values = values.expand(*outer, *values.shape[-2:])
        mask = mask if mask is None else mask.expand(values.shape)
    factor = left.entries.unsqueeze(1)
    partner = values[at]
    place = keys_of(torch.stack([*batch, row]), (*batches, height))
    total = 1
    for size in (*batches, height):
        total *= size
    if mask is None:
        products = factor * partner
        reached = torch.zeros(total, dtype=torch.bool, device=row.device).index_fill(0, place, True)
        covered = reached.unsqueeze(1).expand(total, values.shape[-1])
    else:
        known = mask[at]
        products = torch.where(known, factor * torch.where(known, partner, 0), 0)
        counts = torch.zeros((total, values.shape[-1]), device=row.device)
        covered = counts.index_add(0, place, known.float()) > 0
    wide = products.float() if products.dtype in (torch.float16, torch.bfloat16) else products
    added = wide.new_zeros((total, values.shape[-1])).index_add(0, place, wide).to(products.dtype)
    shape = (*batches, height) if vector else (*batches, height, values.shape[-1])
    return Entries(added.reshape(shape), covered.reshape(shape))


def _both(left: Stored, right: Stored) -> Stored:
    """Two stored matrices: each entry of the left one meets the entries of one row of the right one."""
    if len(left.pattern.sizes) != 2 or len(right.pattern.sizes) != 2:
        raise UnsupportedLayoutError(
            "a batched product of two sparse tensors", left.pattern.layout, tuple(left.shape)
        )
    (row, inner), (line, column) = left.pattern.coordinates(), right.pattern.coordinates()
    height, width = left.pattern.sizes[0], right.pattern.sizes[1]
    if left.pattern.sizes[1] != right.pattern.sizes[0]:
        raise RuntimeError(
            f"matmul: the inner sizes must agree, found {tuple(left.shape)} and {tuple(right.shape)}"
        )
    order = torch.argsort(line, stable=True)
    sorted_line = line[order].contiguous()
    begin = torch.searchsorted(sorted_line, inner)
    number = torch.searchsorted(sorted_line, inner, right=True) - begin
    first = torch.repeat_interleave(number)  # which entry of the left each product comes from
    offset = torch.arange(first.shape[0], device=row.device) - (number.cumsum(0) - number)[first]
    second = order[begin[first] + offset]
    products = left.entries[first] * right.entries[second]
    keys = keys_of(torch.stack([row[first], column[second]]), (height, width))
    distinct, index = torch.unique(keys, return_inverse=True)
    added = products.new_zeros(distinct.shape[0]).index_add(0, index, products)
    places = torch.stack([torch.div(distinct, width, rounding_mode="floor"), distinct % max(width, 1)])
    return from_places(places, added, (height, width), left.pattern)


def _rule(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    operands = [
        *args,
        *([kwargs["input"]] if "input" in kwargs else []),
        *(v for k, v in kwargs.items() if k != "input"),
    ]
    return matmul(*operands)


def _linear(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    arguments: dict[str, Any] = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    weight, bias = arguments["weight"], arguments.get("bias")
    turned = transposed(weight) if isinstance(weight, Stored) else _turned(weight)
    result = matmul(arguments["input"], turned)
    if bias is None:
        return result
    if isinstance(result, Stored) or isinstance(bias, (Stored, Entries)):
        raise UnsupportedLayoutError("linear with this kind of bias", torch.sparse_coo)
    return Entries(result.values + bias, result.mask)


RULES = dict.fromkeys(("matmul", "mm", "bmm", "mv"), _rule) | {"linear": _linear}
