"""Reductions of stored values, group by group: every group that exists has an entry, so none is empty.

The result of reducing some dimensions lists the remaining places (COO); that of reducing all is a scalar.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.stored.entries import Stored, exploded, from_sorted_places
from maskgrad.semantics.stored.groups import Groups, group

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RULES", "rule"]

HALVES = (torch.float16, torch.bfloat16)
#: A formula: entries (n, *dense) and their groups -> one value for each group (g, *dense).
Formula = "Callable[[Tensor, Groups], Tensor]"


def grouped(x: Stored, dim: Any) -> tuple[Groups, Tensor, tuple[int, ...]]:
    """Groups of the entries that differ in ``dim`` only; dense dimensions stay aside unless they are reduced too."""
    dims = as_dims(dim, len(x.shape))
    sizes = x.pattern.sizes
    if all(d < len(sizes) for d in dims) and dim is not None:
        return group(x.pattern.coordinates(), sizes, dims), x.entries, dims
    coordinates, entries, sizes = exploded(x)
    return group(coordinates, sizes, dims), entries, dims


def result_of(values: Tensor, groups: Groups, dims: tuple[int, ...], rank: int, keepdim: bool) -> Any:
    """One value for each group, at its place; a scalar if nothing remains."""
    if not groups.sizes:
        present = torch.full((), bool(groups.number), dtype=torch.bool, device=values.device)
        dense = tuple(values.shape[1:])
        whole = values[0] if groups.number else values.new_zeros(dense)
        if keepdim:
            whole = whole.reshape(*(1,) * (rank - len(dense)), *dense)
        return Entries(whole, present.expand(whole.shape))
    coordinates, sizes = groups.coordinates, groups.sizes
    if keepdim:
        rows, kept, all_sizes = iter(coordinates), iter(sizes), []
        spread = []
        for d in range(len(sizes) + len(dims)):
            reduced = d in dims
            spread.append(coordinates.new_zeros(groups.number) if reduced else next(rows))
            all_sizes.append(1 if reduced else next(kept))
        coordinates, sizes = torch.stack(spread), tuple(all_sizes)
    return from_sorted_places(coordinates, values, sizes)


def rule(formula: Callable[..., Tensor], **defaults: Any) -> Callable[..., Any]:
    """A rule with torch's signature ``(input, dim, keepdim, *, dtype)`` from a formula on groups."""

    def body(
        input: Stored, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, **options: Any
    ) -> Any:
        if dtype is not None:
            input = Stored(input.values.to(dtype), input.pattern)
        groups, entries, dims = grouped(input, dim)
        values = formula(entries, groups, **{**defaults, **options})
        return result_of(values, groups, dims, len(input.shape), keepdim)

    return body


def _counts(entries: Tensor, groups: Groups) -> Tensor:
    return groups.count().reshape(-1, *(1,) * (entries.ndim - 1))


def total(entries: Tensor, groups: Groups) -> Tensor:
    """Sum; integers and Booleans in int64."""
    if not (entries.is_floating_point() or entries.is_complex()):
        entries = entries.long()
    return groups.sum(entries).to(entries.dtype)


def mean(entries: Tensor, groups: Groups) -> Tensor:
    """Sum over number."""
    if not (entries.is_floating_point() or entries.is_complex()):
        raise RuntimeError(f"mean(): input dtype should be floating point or complex, found {entries.dtype}")
    return (groups.sum(entries) / _counts(entries, groups)).to(entries.dtype)


def deviation(entries: Tensor, groups: Groups) -> Tensor:
    """Entries less the mean of their group, halves in float32."""
    wide = entries.float() if entries.dtype in HALVES else entries
    return wide - (groups.sum(wide) / _counts(wide, groups))[groups.index]


def var(
    entries: Tensor, groups: Groups, correction: float | None = None, unbiased: bool | None = None
) -> Tensor:
    """Mean squared deviation, in two passes."""
    if correction is None:
        correction = 1 if unbiased is None or unbiased else 0
    apart = deviation(entries, groups)
    squares = (apart * apart.conj()).real if apart.is_complex() else apart * apart
    spread = groups.sum(squares) / (_counts(squares, groups) - correction).clamp(min=0)
    return spread.to(entries.dtype.to_real() if entries.is_complex() else entries.dtype)


def std(
    entries: Tensor, groups: Groups, correction: float | None = None, unbiased: bool | None = None
) -> Tensor:
    """Root of the variance; its gradient at 0 is 0, as in torch.std."""
    spread = var(entries, groups, correction, unbiased)
    flat = spread == 0
    return torch.where(flat, 0, torch.where(flat, 1, spread).sqrt())


def extremum(entries: Tensor, groups: Groups, largest: bool) -> Tensor:
    """Extremum; its gradient is shared equally among the entries that attain it."""
    best = groups.extremum(entries, largest)
    if not entries.requires_grad:
        return best
    attained = (entries.detach() == best[groups.index]) | (entries.detach() != entries.detach())
    share = groups.sum(attained.to(best.dtype))[groups.index]
    picked = groups.sum(torch.where(attained, entries / share, 0))
    # exact value, gradient of the mean of the winners; an infinite winner has no rounding to correct
    return torch.where(best.isfinite(), best + (picked - picked.detach()), picked)


def prod(entries: Tensor, groups: Groups) -> Tensor:
    """Product."""
    if not (entries.is_floating_point() or entries.is_complex()):
        entries = entries.long()
    index = groups.index.reshape(-1, *(1,) * (entries.ndim - 1)).expand_as(entries)
    ones = entries.new_ones((groups.number, *entries.shape[1:]))
    return ones.scatter_reduce(0, index, entries, "prod", include_self=True)


def norm(entries: Tensor, groups: Groups, ord: float = 2) -> Tensor:
    """Vector norm of order ``ord``; its gradient at a zero vector is 0, as in torch."""
    size = entries.abs()
    if ord in (math.inf, -math.inf):
        return extremum(size, groups, ord > 0)
    if ord == 0:
        return groups.sum((size != 0).to(size.dtype))
    nothing = size == 0
    powers = torch.where(nothing, 0.0 if ord > 0 else math.inf, torch.where(nothing, 1, size) ** ord).to(
        size.dtype
    )
    added = groups.sum(powers)
    flat = (added == 0) | added.isinf()
    return torch.where(flat, added ** (1 / ord), torch.where(flat, 1, added) ** (1 / ord)).to(size.dtype)


def logsumexp(entries: Tensor, groups: Groups) -> Tensor:
    """Logarithm of the sum of exponentials, shifted by the largest entry."""
    best = groups.extremum(entries, True)
    shift = torch.where(best.isfinite(), best, 0)
    added = groups.sum((entries - shift[groups.index]).exp())
    return added.log().to(entries.dtype) + shift


def any_true(entries: Tensor, groups: Groups) -> Tensor:
    """Whether some entry is true."""
    return groups.sum((entries != 0).long()) > 0


def all_true(entries: Tensor, groups: Groups) -> Tensor:
    """Whether no entry is false."""
    return groups.sum((entries == 0).long()) == 0


def count_nonzero(entries: Tensor, groups: Groups) -> Tensor:
    """How many entries differ from zero."""
    return groups.sum((entries != 0).long())


def _vector_norm(
    input: Stored, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    return rule(norm, ord=ord)(input, dim, keepdim, dtype=dtype)


def _norm(
    input: Stored, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: None = None, dtype: Any = None
) -> Any:
    return _vector_norm(input, 2 if p in ("fro", None) else p, dim, keepdim, dtype=dtype)


def _spread(formula: Callable[..., Tensor]) -> Callable[..., Any]:
    def body(
        input: Stored,
        dim: Any = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        return rule(formula)(input, dim, keepdim, correction=correction, unbiased=unbiased)

    return body


def _extremum(largest: bool) -> Callable[..., Any]:
    return rule(extremum, largest=largest)


RULES: dict[str, Callable[..., Any]] = {
    "sum": rule(total),
    "mean": rule(mean),
    "prod": rule(prod),
    "var": _spread(var),
    "std": _spread(std),
    "amax": _extremum(True),
    "amin": _extremum(False),
    "logsumexp": rule(logsumexp),
    "any": rule(any_true),
    "all": rule(all_true),
    "count_nonzero": rule(count_nonzero),
    "linalg.vector_norm": _vector_norm,
    "norm": _norm,
}
