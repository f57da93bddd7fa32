"""Reductions of stored values, group by group: no group is empty.

The result of reducing some dimensions contains the remaining indices (COO); that of reducing all is a scalar.
Positions of extrema refer to the full shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.mode import can_read, forward_mode_is_active
from maskgrad.patterns import JaggedPattern
from maskgrad.patterns.stored import ravel_multi_index
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.signatures import named
from maskgrad.semantics.stored.elementwise import apply
from maskgrad.semantics.stored.entries import StoredEntries, exploded
from maskgrad.semantics.stored.groups import Groups, group, grouped, reduced

__all__ = ["RULES", "is_inexact", "mean", "over_groups", "total"]


def over_groups(formula: Callable[..., Tensor]) -> Callable[..., Any]:
    """Make a rule with torch's signature from a formula: entries (n, *dense) and groups -> a value each (g, *dense)."""

    def body(
        input: StoredEntries, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, **options: Any
    ) -> Any:
        if dtype is not None:
            input = StoredEntries(input.values.to(dtype), input.pattern)
        groups, entries, dims = grouped(input, dim)
        return reduced(formula(entries, groups, **options), groups, dims, len(input.shape), keepdim)

    return body


def is_inexact(values: Tensor) -> bool:
    """Return whether a tensor has a floating-point or complex dtype."""
    return values.is_floating_point() or values.is_complex()


def total(entries: Tensor, groups: Groups) -> Tensor:
    """Sum; integers and Booleans in int64."""
    entries = entries if is_inexact(entries) else entries.long()
    return groups.total(entries)


def mean(entries: Tensor, groups: Groups) -> Tensor:
    """Sum divided by count."""
    if not is_inexact(entries):
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. "
            f"Got: {entries.dtype}"
        )
    return groups.mean(entries)


def _mean_without_nan(entries: Tensor, groups: Groups) -> Tensor:
    """NaN if all entries are, with a gradient of 0 there."""
    absent = entries.isnan()
    added = groups.sum(torch.where(absent, torch.zeros_like(entries), entries))
    number = groups.sum((~absent).to(added.dtype.to_real()))
    average = added / number.clamp(min=1)
    return torch.where(number > 0, average, torch.nan).to(entries.dtype)


def _prod(entries: Tensor, groups: Groups) -> Tensor:
    found = kernels.segment_product(entries, groups)
    return found.to(entries.dtype if is_inexact(entries) else torch.int64)


def _logsumexp(entries: Tensor, groups: Groups) -> Tensor:
    entries = entries if is_inexact(entries) else entries.to(torch.get_default_dtype())
    found = kernels.segment_logsumexp(entries, groups)
    return found.to(entries.dtype)


def _truth(result: Tensor, entries: Tensor) -> Tensor:
    return result.to(torch.uint8) if entries.dtype == torch.uint8 else result


def _has_enough(groups: Groups, correction: float) -> bool:
    """Whether every group has more entries than the correction, as far as known; otherwise there is no estimate."""
    if correction < 1:
        return True
    return can_read(groups.pointers) and bool((groups.count() > correction).all())


def _variance(deviation: bool, with_mean: bool) -> Callable[..., Any]:
    def body(
        input: StoredEntries,
        dim: Any = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> Any:
        if isinstance(dim, bool):  # var(x, unbiased)
            dim, unbiased = None, dim
        if correction is None:
            correction = 1 if unbiased is None or unbiased else 0
        groups, entries, dims = grouped(input, dim)
        if not is_inexact(entries):
            raise RuntimeError(
                f"std and var only support floating point and complex dtypes, found {entries.dtype}"
            )
        found, known = groups.variance(entries, correction), groups
        if groups.sizes and not _has_enough(groups, correction):
            enough = groups.count() > correction
            found, known = found if groups.present is not None else found[enough], groups.only(enough)
        if deviation:  # the gradient of the root at 0 is 0, as in torch.std
            flat = found == 0
            found = torch.where(flat, 0, torch.where(flat, 1, found).sqrt())
        dtype = entries.dtype.to_real() if entries.is_complex() else entries.dtype
        result = reduced(found.to(dtype), known, dims, len(input.shape), keepdim)
        if isinstance(result, Entries) and not groups.sizes and groups.number:
            result = Entries(result.values, result.mask & (groups.count() > correction).all())
        if not with_mean:
            return result
        return result, reduced(mean(entries, groups), groups, dims, len(input.shape), keepdim)

    return body


def _check(input: StoredEntries, dims: tuple[int, ...]) -> None:
    if input.values.is_complex():
        raise RuntimeError(f"extrema are not defined for complex dtypes, found {input.values.dtype}")
    for d in dims:
        if not input.shape[d]:
            raise IndexError(f"amax(): Expected reduction dim {d} to have non-zero size.")


def _extremum(entries: Tensor, groups: Groups, largest: bool, nan_shares: bool = False) -> Tensor:
    """Largest or smallest entry; its gradient is shared equally by ties.

    A NaN equals nothing, so that torch's gradient is 0 / 0 at every entry then; ``nan_shares``: equal NaN share it.
    """
    best = groups.extremum(entries, largest)
    if not (entries.requires_grad or (entries.is_floating_point() and forward_mode_is_active())):
        return best
    plain = entries.detach()
    attained = plain == best[groups.index]
    broken = best.isnan()[groups.index]
    if nan_shares:
        attained, broken = attained | (broken & plain.isnan()), torch.zeros_like(broken)
    share = groups.sum(attained.to(best.dtype)).to(best.dtype)[groups.index]
    weight = torch.where(broken, torch.nan, 1 / share.clamp(min=1))
    picked = groups.sum(torch.where(attained | broken, entries * weight, 0)).to(best.dtype)
    # the exact value with the gradient of the mean of the ties; infinite ones have no rounding to correct
    return torch.where(best.isfinite(), best + (picked - picked.detach()), picked)


def _shared(largest: bool, nan_shares: bool = False) -> Callable[..., Any]:
    def body(input: StoredEntries, dim: Any = (), keepdim: bool = False) -> Any:
        groups, entries, dims = grouped(input, dim)
        _check(input, dims)
        best = _extremum(entries, groups, largest, nan_shares)
        return reduced(best, groups, dims, len(input.shape), keepdim)

    return body


def _aminmax(input: StoredEntries, *, dim: int | None = None, keepdim: bool = False) -> Any:
    kind: Any = torch.return_types.aminmax
    return kind([_shared(largest)(input, dim, keepdim) for largest in (False, True)])


def _winners(
    input: StoredEntries, dim: int | None, largest: bool
) -> tuple[Tensor, Tensor, Groups, tuple[int, ...]]:
    """The first winner of each group: its value and its position; and the groups."""
    rank = len(input.shape)
    if dim is not None and as_dim(dim, rank) == rank:  # 0 and -1 of a scalar
        dim = None
    dims = tuple(range(rank)) if dim is None else (as_dim(dim, rank),)
    _check(input, dims)
    if type(input.pattern) is JaggedPattern and dim is not None:  # features are kept
        groups, entries, _ = grouped(input, dim)
        position = input.pattern.coordinates()[dims[0]]
    else:
        coordinates, entries, sizes = exploded(input)
        groups = group(coordinates, sizes, dims)
        position = ravel_multi_index(coordinates, sizes) if dim is None else coordinates[dims[0]]
    position = position.reshape(-1, *(1,) * (entries.ndim - 1)).expand(entries.shape)
    plain = entries.detach()
    winning = (plain == groups.extremum(plain, largest)[groups.index]) | (plain != plain)
    first = groups.extremum(torch.where(winning, position, torch.iinfo(torch.int64).max), False)
    chosen = winning & (position == first[groups.index])
    found = groups.sum(torch.where(chosen, entries, torch.zeros_like(entries)))  # one entry per group
    return found.to(entries.dtype), first, groups, dims


def _position(largest: bool) -> Callable[..., Any]:
    def body(input: StoredEntries, dim: int | None = None, keepdim: bool = False) -> Any:
        _, first, groups, dims = _winners(input, dim, largest)
        return reduced(first, groups, dims, len(input.shape), keepdim)

    return body


def _extremum_or_pair(largest: bool) -> Callable[..., Any]:
    """``torch.max`` in its three forms: over all entries, along one dimension (with positions), of two tensors."""
    kind: Any = torch.return_types.max if largest else torch.return_types.min
    pairwise = torch.maximum if largest else torch.minimum

    def body(input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        second = dim if isinstance(dim, (StoredEntries, Entries, Tensor)) else other
        if second is not None:
            return apply(lambda v: pairwise(v[0], v[1]), [input, second])
        if dim is None:
            return _shared(largest, nan_shares=True)(input)
        values, first, groups, dims = _winners(input, dim, largest)
        return kind([reduced(v, groups, dims, len(input.shape), keepdim) for v in (values, first)])

    return body


RULES: dict[str, Callable[..., Any]] = {
    **{
        name: named(over_groups(formula))
        for name, formula in {
            "sum": total,
            "mean": mean,
            "nansum": lambda entries, groups: total(
                torch.where(entries.isnan(), torch.zeros_like(entries), entries), groups
            ),
            "nanmean": _mean_without_nan,
            "prod": _prod,
            "logsumexp": _logsumexp,
            "any": lambda entries, groups: _truth(groups.sum((entries != 0).long()) > 0, entries),
            "all": lambda entries, groups: _truth(groups.sum((entries == 0).long()) == 0, entries),
            "count_nonzero": lambda entries, groups: groups.sum((entries != 0).long()),
        }.items()
    },
    "var": named(_variance(False, False)),
    "std": named(_variance(True, False)),
    "var_mean": named(_variance(False, True)),
    "std_mean": named(_variance(True, True)),
    "amax": named(_shared(True)),
    "amin": named(_shared(False)),
    "aminmax": named(_aminmax),
    "argmax": named(_position(True)),
    "argmin": named(_position(False)),
    "max": named(_extremum_or_pair(True)),
    "min": named(_extremum_or_pair(False)),
}
