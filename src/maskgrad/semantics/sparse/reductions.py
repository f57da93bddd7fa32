"""Reductions of stored values, group by group: every group that exists has an entry, so none is empty.

The result of reducing some dimensions lists the remaining places (COO); that of reducing all is a scalar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.patterns.eager import can_read_values
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.signatures import named
from maskgrad.semantics.sparse.entries import SparseEntries
from maskgrad.semantics.sparse.groups import Groups, grouped, reduced

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RULES", "is_inexact", "mean", "over_groups", "total"]


def over_groups(formula: Callable[..., Tensor]) -> Callable[..., Any]:
    """A rule with torch's signature from a formula: entries (n, *dense) and groups -> a value for each (g, *dense)."""

    def body(
        input: SparseEntries, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, **options: Any
    ) -> Any:
        if dtype is not None:
            input = SparseEntries(input.values.to(dtype), input.pattern)
        groups, entries, dims = grouped(input, dim)
        return reduced(formula(entries, groups, **options), groups, dims, len(input.shape), keepdim)

    return body


def is_inexact(values: Tensor) -> bool:
    """Whether a tensor holds floating-point or complex numbers."""
    return values.is_floating_point() or values.is_complex()


def total(entries: Tensor, groups: Groups) -> Tensor:
    """Sum; integers and Booleans in int64."""
    entries = entries if is_inexact(entries) else entries.long()
    return groups.total(entries)


def mean(entries: Tensor, groups: Groups) -> Tensor:
    """Sum over number."""
    if not is_inexact(entries):
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. "
            f"Got: {entries.dtype}"
        )
    return groups.mean(entries)


def _mean_without_nan(entries: Tensor, groups: Groups) -> Tensor:
    """NaN where all are, with a gradient of 0 there."""
    absent = entries.isnan()
    added = groups.sum(torch.where(absent, torch.zeros_like(entries), entries))
    number = groups.sum((~absent).to(added.dtype.to_real()))
    average = added / number.clamp(min=1)
    return torch.where(number > 0, average, torch.nan).to(entries.dtype)


def _prod(entries: Tensor, groups: Groups) -> Tensor:
    found = groups.reduced(entries, kernels.product, kernels.segment_product)
    return found.to(entries.dtype if is_inexact(entries) else torch.int64)


def _logsumexp(entries: Tensor, groups: Groups) -> Tensor:
    entries = entries if is_inexact(entries) else entries.to(torch.get_default_dtype())
    found = groups.reduced(entries, kernels.masked_logsumexp, kernels.segment_logsumexp)
    return found.to(entries.dtype)


def _truth(result: Tensor, entries: Tensor) -> Tensor:
    return result.to(torch.uint8) if entries.dtype == torch.uint8 else result


def _has_enough(groups: Groups, correction: float) -> bool:
    """Whether every group has more entries than the correction, as far as is known: fewer have no estimate."""
    if correction < 1:
        return True
    return can_read_values(groups.pointers) and bool((groups.count() > correction).all())


def _variance(deviation: bool, with_mean: bool) -> Callable[..., Any]:
    def body(
        input: SparseEntries,
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
            enough = (groups.count() > correction).nonzero().squeeze(1)
            found, known = found[enough], groups.only(enough)
        if deviation:  # the gradient of the root at 0 is 0, as in torch.std
            flat = found == 0
            found = torch.where(flat, 0, torch.where(flat, 1, found).sqrt())
        dtype = entries.dtype.to_real() if entries.is_complex() else entries.dtype
        result = reduced(found.to(dtype), known, dims, len(input.shape), keepdim)
        if isinstance(result, Entries) and groups.number:
            result = Entries(result.values, result.mask & (groups.count() > correction).all())
        if not with_mean:
            return result
        return result, reduced(mean(entries, groups), groups, dims, len(input.shape), keepdim)

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
}
