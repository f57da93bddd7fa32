"""Reductions: PyTorch's result on the specified entries; along a dimension unspecified if there are none.

Each function has torch's signature and works on :class:`Entries`. An unspecified entry is replaced by the identity
element of the operation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import nan
from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels.reductions import some
from maskgrad.kernels.smallest import any_of
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import Entries, Operand, filled, filler_as, mask_of, rearranged, values_of
from maskgrad.semantics.facts import Operation, functions_named, of_rule, record
from maskgrad.semantics.numbers import REDUCED, Number


def sum(
    input: Entries, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Entries:
    """Add up the specified entries."""
    dims = as_dims(dim, input.values.ndim)
    return Entries(*kernels.masked_sum(*input, dims, keepdim, dtype))


def mean(
    input: Entries, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Entries:
    """Average the specified entries."""
    dims = as_dims(dim, input.values.ndim)
    result, count = kernels.masked_mean(input.values, input.mask, dims, keepdim, dtype)
    return Entries(result, some(count, input.mask, dims, keepdim))


def without_nan(input: Entries) -> Entries:
    """The same entries without NaN."""
    return Entries(input.values, input.mask & ~torch.isnan(input.values))


def nansum(
    input: Entries, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Entries:
    """Add up the specified entries that are not NaN; 0 if all specified ones are, as in torch."""
    total = sum(without_nan(input), dim, keepdim, dtype=dtype)
    return Entries(total.values, _specified(input, dim, keepdim))


def nanmean(
    input: Entries, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Entries:
    """Average the specified entries that are not NaN; NaN if all specified ones are, as in torch."""
    average, present = mean(without_nan(input), dim, keepdim, dtype=dtype)
    specified = _specified(input, dim, keepdim)
    return Entries(torch.where(present | ~specified, average, torch.nan), specified)


def _specified(input: Entries, dim: Any, keepdim: bool) -> Tensor:
    return any_of(input.mask, as_dims(dim, input.mask.ndim), keepdim)


def prod(
    input: Entries, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Entries:
    """Multiply the specified entries."""
    if dtype is not None:
        input = Entries(input.values.to(dtype), input.mask)
    dims = as_dims(dim, input.values.ndim)
    return Entries(*kernels.product(input.values, input.mask, dims, keepdim))


def _reduce_each(
    function: Callable[..., Any], input: Entries, filler: Any, dim: Any, keepdim: bool
) -> Entries:
    """Apply one of torch's reductions to values in which unspecified entries are neutral."""
    dims, values = as_dims(dim, input.values.ndim), filled(input, filler)
    found = function(values, dims, keepdim=keepdim) if dims else function(values)
    return Entries(found, any_of(input.mask, dims, keepdim))


def any(input: Entries, dim: Any = None, keepdim: bool = False) -> Entries:
    """Return whether some specified entry is true."""
    return _reduce_each(torch.any, input, 0, dim, keepdim)


def all(input: Entries, dim: Any = None, keepdim: bool = False) -> Entries:
    """Return whether every specified entry is true."""
    return _reduce_each(torch.all, input, 1, dim, keepdim)


def count_nonzero(input: Entries, dim: Any = None) -> Entries:
    """Number of specified nonzero entries."""
    truth = Entries((input.values != 0) & input.mask, input.mask)
    return sum(truth, dim)


def hash_tensor(input: Entries, dim: Any = (), *, keepdim: bool = False, mode: int = 0) -> Entries:
    """Combine the bits of the specified entries by exclusive or; those of 0 are zero and have no effect."""
    zero = filler_as(input.values.dtype, 0)
    return _reduce_each(functools.partial(torch.hash_tensor, mode=mode), input, zero, dim, keepdim)


def sum_to_size(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.sum_to_size(…)``: the sum over the specified entries along the dimensions that broadcasting would add."""
    x, *size = args
    if size in ([()], [[]], [torch.Size()]):  # as in torch: everything is summed, for any rank
        return sum(x)
    shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)
    expected = x.values.sum_to_size(shape).shape if not x.values.is_meta else torch.Size(shape)
    added = x.values.ndim - len(expected)
    kept = (added + d for d, s in enumerate(expected) if s == 1 and x.values.shape[added + d] != 1)
    dims = [*range(added), *kept]
    return rearranged(sum(x, dims, True), lambda part: part.reshape(expected)) if dims else x


def equal(function: Callable[..., Any], input: Operand, other: Operand, *args: Any, **options: Any) -> bool:
    """``torch.equal`` and ``torch.allclose``; unspecified entries are compared as equal, patterns exactly."""
    if not isinstance(other, (Entries, Tensor)):
        raise TypeError(f"other must be a tensor, found {type(other).__name__}; write torch.as_tensor(other)")
    values = values_of(input), values_of(other)
    if function in EQUAL and values[0].shape != values[1].shape:
        return False
    pattern, other_pattern = torch.broadcast_tensors(mask_of(input), mask_of(other))
    if not torch.equal(pattern, other_pattern):
        return False
    safe = [torch.where(pattern, v, 1 if v.dtype != torch.bool else True) for v in values]
    return bool(function(*safe, *args, **options))


def _record(rule: Callable[..., Any], gradient: str, nothing: float, also: str = "") -> Operation:
    return of_rule(rule, "reductions", REDUCED, gradient, also=also, number=Number(nothing), padded="mask")


EQUAL = functions_named("equal")[0]
SOME = "specified where at least one entry was"
INCOMING = "the incoming gradient"
OPERATIONS = (
    _record(sum, f"{INCOMING} at each specified entry", 0),
    _record(mean, f"{INCOMING} divided by the number of specified entries", nan),
    _record(nansum, f"{INCOMING} at each specified entry that is not NaN", 0),
    _record(nanmean, f"{INCOMING} divided by the number of specified entries that are not NaN", nan),
    _record(prod, "the product of the other specified entries", 1),
    _record(any, "none", 0, also="_is_any_true"),
    # torch.distributions checks its arguments with this function
    _record(all, "none", 1, also="_is_all_true"),
    _record(count_nonzero, "none", 0),
    # PyTorch has no hash of an empty tensor
    of_rule(hash_tensor, "reductions", SOME),
    of_rule(sum_to_size, "reductions", SOME, f"{INCOMING} at each specified entry"),
    *(
        record(name, "equality", equal, "a plain bool; the patterns are compared too", padded="mask")
        for name in ("equal", "allclose")
    ),
)
