"""Products with stored matrices: one multiplication for each product of specified factors, none for the others.

A stored and a dense factor give a dense result, where rows without entries are unspecified; two stored ones give COO.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.segments import widened
from maskgrad.patterns.stored import ravel_multi_index, unravel_index
from maskgrad.semantics.callbacks import call_back
from maskgrad.semantics.contractions import factors_of
from maskgrad.semantics.entries import Entries, rearranged
from maskgrad.semantics.signatures import bound
from maskgrad.semantics.stored.entries import StoredEntries, flat, from_places, is_masked, shape_of
from maskgrad.semantics.stored.views import expand, meeting, squeeze, transpose, unsqueeze

__all__ = ["RULES"]


def _matmul(left: Any, right: Any) -> Any:
    """``left @ right`` with at least one stored factor: vectors, matrices, and batches of matrices."""
    left, right = (flat(f) if isinstance(f, StoredEntries) else f for f in (left, right))
    if isinstance(left, StoredEntries) and len(left.shape) == 1:
        return squeeze(_matmul(unsqueeze(left, 0), right), -2 if len(shape_of(right)) > 1 else -1)
    if isinstance(right, StoredEntries) and len(right.shape) == 1:
        return squeeze(_matmul(left, unsqueeze(right, 1)), -1)
    if isinstance(left, StoredEntries) and isinstance(right, StoredEntries):
        return _both(left, right)
    if isinstance(right, StoredEntries):
        turned = transpose(right, -2, -1)
        if len(shape_of(left)) == 1:
            return _times_dense(turned, left)
        return transpose(_times_dense(turned, transpose(left, -2, -1)), -2, -1)
    return _times_dense(left, right)


def _times_dense(left: StoredEntries, right: Entries | Tensor) -> Entries:
    """(…, n, k) stored times (…, k, p) dense: each entry scales one row of the partner."""
    values, mask = right if isinstance(right, Entries) else (right, None)
    if values.ndim == 1:
        side: Entries = squeeze(_times_dense(left, rearranged(right, lambda t: t.unsqueeze(1))), -1)
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
    left, right = (expand(f, (*batches, *f.sizes[-2:])) for f in (left, right))
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
    return from_places(unravel_index(distinct, sizes), added.to(left.values.dtype), sizes)


def _checked(check: Callable[..., Any], rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule of two factors; ``check`` gets tensors without memory of their shapes, to raise torch's errors."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        factors: Any = factors_of(args, kwargs)
        left, right, options = factors
        check(*(torch.empty(shape_of(f), device="meta") for f in (left, right)), **options)
        dtypes = [f.values.dtype if is_masked(f) else f.dtype for f in (left, right)]
        if dtypes[0] != dtypes[1]:
            raise RuntimeError(f"both factors must have the same dtype, found {dtypes[0]} and {dtypes[1]}")
        if dtypes[0] == torch.bool:
            raise RuntimeError("products are not implemented for Booleans; use x.long()")
        return rule(left, right)

    return body


def _written(names: str, formula: Callable[..., Any]) -> Callable[..., Any]:
    """An operation written with others, on MaskedTensors."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = bound(names, args, kwargs)
        operands = [given.pop(name) for name in names.split() if name in given]
        return call_back(lambda *values: formula(*values, **given), *operands)

    return body


def _inner(input: Any, other: Any) -> Any:
    """Over the last dimension of both, each vector of one with each of the other."""
    if not input.ndim or not other.ndim:
        return input * other
    left, right = [x.reshape(x.shape[:-1].numel(), x.shape[-1]) for x in (input, other)]
    found = left @ right.mT
    return found.reshape((*input.shape[:-1], *other.shape[:-1]))


def _outer(input: Any, vec2: Any) -> Any:
    column, row = input.unsqueeze(1), vec2.unsqueeze(0)
    return column * row if torch.strided in (input.layout, vec2.layout) else column @ row


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """An unspecified bias leaves its outputs unspecified."""
    product = input @ (weight.mT if weight.ndim > 1 else weight)
    return product if bias is None else product + bias


def _plus_product(input: Any, left: Any, right: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Specified where the product and the input are; beta = 0 ignores the input."""
    product = left @ right * alpha
    return input * beta + product if beta else product


def _trace(input: Any) -> Any:
    torch.trace(torch.empty(input.shape, device="meta"))  # torch raises the errors
    return input.diagonal().sum()


RULES: dict[str, Callable[..., Any]] = {
    **{name: _checked(getattr(torch, name), _matmul) for name in ("matmul", "mm", "bmm", "mv")},
    "dot": _checked(torch.dot, lambda x, y: call_back(lambda a, b: (a * b).sum(0), x, y)),
    "vdot": _checked(torch.vdot, lambda x, y: call_back(lambda a, b: (a.conj() * b).sum(0), x, y)),
    "linalg.vecdot": _written("input y dim", lambda input, y, dim=-1: (input.conj() * y).sum(dim)),
    "inner": _written("input other", _inner),
    "outer": _written("input vec2", _outer),
    "linear": _written("input weight bias", _linear),
    "trace": _written("input", _trace),
    "addmm": _written("input mat1 mat2", _plus_product),
    "addmv": _written("input mat vec", _plus_product),
    "baddbmm": _written("input batch1 batch2", _plus_product),
}
