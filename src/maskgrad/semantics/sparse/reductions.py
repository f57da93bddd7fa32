"""Reductions of stored values, group by group: every group that exists has an entry, so none is empty.

The result of reducing some dimensions lists the remaining places (COO); that of reducing all is a scalar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

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


def without_nan(entries: Tensor, groups: Groups) -> Tensor:
    """Sum of the entries that are not NaN."""
    return total(torch.where(entries.isnan(), torch.zeros_like(entries), entries), groups)


def mean_without_nan(entries: Tensor, groups: Groups) -> Tensor:
    """Mean of the entries that are not NaN; NaN where all are, with a gradient of 0 there."""
    absent = entries.isnan()
    added = groups.sum(torch.where(absent, torch.zeros_like(entries), entries))
    number = groups.sum((~absent).to(added.dtype.to_real()))
    average = added / number.clamp(min=1)
    return torch.where(number > 0, average, torch.nan).to(entries.dtype)


def prod(entries: Tensor, groups: Groups) -> Tensor:
    """Product; integers and Booleans in int64."""
    return groups.prod(entries).to(entries.dtype if is_inexact(entries) else torch.int64)


def any_true(entries: Tensor, groups: Groups) -> Tensor:
    """Whether some entry is true."""
    return _truth(groups.sum((entries != 0).long()) > 0, entries)


def all_true(entries: Tensor, groups: Groups) -> Tensor:
    """Whether no entry is false."""
    return _truth(groups.sum((entries == 0).long()) == 0, entries)


def _truth(result: Tensor, entries: Tensor) -> Tensor:
    return result.to(torch.uint8) if entries.dtype == torch.uint8 else result


def count_nonzero(entries: Tensor, groups: Groups) -> Tensor:
    """How many entries differ from zero."""
    return groups.sum((entries != 0).long())


def logsumexp(entries: Tensor, groups: Groups) -> Tensor:
    """Logarithm of the sum of exponentials."""
    if not is_inexact(entries):
        entries = entries.to(torch.get_default_dtype())
    return groups.logsumexp(entries).to(entries.dtype)


RULES: dict[str, Callable[..., Any]] = {
    "sum": named(over_groups(total)),
    "mean": named(over_groups(mean)),
    "nansum": named(over_groups(without_nan)),
    "nanmean": named(over_groups(mean_without_nan)),
    "prod": named(over_groups(prod)),
    "logsumexp": named(over_groups(logsumexp)),
    "any": named(over_groups(any_true)),
    "all": named(over_groups(all_true)),
    "count_nonzero": named(over_groups(count_nonzero)),
}
