"""Variances and deviations of stored values, group by group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.patterns.eager import can_read_values
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.signatures import named
from maskgrad.semantics.sparse.entries import SparseEntries
from maskgrad.semantics.sparse.groups import Groups, grouped, reduced
from maskgrad.semantics.sparse.reductions import is_inexact, mean

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RULES"]


def variance(entries: Tensor, groups: Groups, correction: float) -> Tensor:
    """Mean squared deviation, not yet rounded."""
    if not is_inexact(entries):
        raise RuntimeError(
            f"std and var only support floating point and complex dtypes, found {entries.dtype}"
        )
    return groups.variance(entries, correction)


def root(variance: Tensor) -> Tensor:
    """The square root, whose gradient at 0 is 0, as in torch.std."""
    flat = variance == 0
    return torch.where(flat, 0, torch.where(flat, 1, variance).sqrt())


def has_enough(groups: Groups, correction: float) -> bool:
    """Whether every group has more entries than the correction, as far as is known: fewer have no estimate."""
    if correction < 1:
        return True
    return can_read_values(groups.pointers) and bool((groups.count() > correction).all())


def _rule(deviation: bool, with_mean: bool) -> Callable[..., Any]:
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
        spread, known = variance(entries, groups, correction), groups
        if groups.sizes and not has_enough(groups, correction):
            enough = (groups.count() > correction).nonzero().squeeze(1)
            spread, known = spread[enough], groups.only(enough)
        spread = root(spread) if deviation else spread
        dtype = entries.dtype.to_real() if entries.is_complex() else entries.dtype
        result = reduced(spread.to(dtype), known, dims, len(input.shape), keepdim)
        if isinstance(result, Entries) and groups.number:
            result = Entries(result.values, result.mask & (groups.count() > correction).all())
        if not with_mean:
            return result
        return result, reduced(mean(entries, groups), groups, dims, len(input.shape), keepdim)

    return named(body)


RULES: dict[str, Callable[..., Any]] = {
    "var": _rule(False, False),
    "std": _rule(True, False),
    "var_mean": _rule(False, True),
    "std_mean": _rule(True, True),
}
