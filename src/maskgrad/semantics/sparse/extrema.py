"""Extrema of stored values, group by group, and their positions, which count in the whole shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.patterns.eager import forward_mode_is_active
from maskgrad.patterns.stored import ravel_multi_index
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.signatures import named
from maskgrad.semantics.sparse.elementwise import apply
from maskgrad.semantics.sparse.entries import SparseEntries, exploded
from maskgrad.semantics.sparse.groups import Groups, group, grouped, reduced

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RULES"]


def _check(input: SparseEntries, dims: tuple[int, ...]) -> None:
    if input.values.is_complex():
        raise RuntimeError(f"extrema are not defined for complex dtypes, found {input.values.dtype}")
    for d in dims:
        if not input.shape[d]:
            raise IndexError(f"amax(): Expected reduction dim {d} to have non-zero size.")


def _extremum(entries: Tensor, groups: Groups, largest: bool, nan_shares: bool = False) -> Tensor:
    """Largest or smallest entry; its gradient is shared equally by those that attain it.

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
    # the exact value with the gradient of the mean of the winners; an infinite winner has no rounding to correct
    return torch.where(best.isfinite(), best + (picked - picked.detach()), picked)


def _shared(largest: bool, nan_shares: bool = False) -> Callable[..., Any]:
    def body(input: SparseEntries, dim: Any = (), keepdim: bool = False) -> Any:
        groups, entries, dims = grouped(input, dim)
        _check(input, dims)
        best = _extremum(entries, groups, largest, nan_shares)
        return reduced(best, groups, dims, len(input.shape), keepdim)

    return body


def _aminmax(input: SparseEntries, *, dim: int | None = None, keepdim: bool = False) -> Any:
    kind: Any = torch.return_types.aminmax
    return kind([_shared(largest)(input, dim, keepdim) for largest in (False, True)])


def _winners(
    input: SparseEntries, dim: int | None, largest: bool
) -> tuple[Tensor, Tensor, Groups, tuple[int, ...]]:
    """The first winner of each group: its value and its position; and the groups."""
    coordinates, entries, sizes = exploded(input)
    dims = tuple(range(len(sizes))) if dim is None else (as_dim(dim, len(sizes)),)
    _check(input, dims)
    groups = group(coordinates, sizes, dims)
    position = ravel_multi_index(coordinates, sizes) if dim is None else coordinates[dims[0]]
    plain = entries.detach()
    winning = (plain == groups.extremum(plain, largest)[groups.index]) | (plain != plain)
    first = groups.extremum(torch.where(winning, position, torch.iinfo(torch.int64).max), False)
    chosen = (winning & (position == first[groups.index])).nonzero().squeeze(1)
    order = torch.argsort(groups.index[chosen])
    return entries[chosen[order]], first, groups, dims


def _position(largest: bool) -> Callable[..., Any]:
    def body(input: SparseEntries, dim: int | None = None, keepdim: bool = False) -> Any:
        _, first, groups, dims = _winners(input, dim, largest)
        return reduced(first, groups, dims, len(input.shape), keepdim)

    return body


def _extremum_or_pair(largest: bool) -> Callable[..., Any]:
    """``torch.max`` in its three forms: of everything, along one dimension (with positions), of two tensors."""
    kind: Any = torch.return_types.max if largest else torch.return_types.min
    pairwise = torch.maximum if largest else torch.minimum

    def body(input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        second = dim if isinstance(dim, (SparseEntries, Entries, Tensor)) else other
        if second is not None:
            return apply(lambda v: pairwise(v[0], v[1]), [input, second])
        if dim is None:
            return _shared(largest, nan_shares=True)(input)
        values, first, groups, dims = _winners(input, dim, largest)
        return kind([reduced(v, groups, dims, len(input.shape), keepdim) for v in (values, first)])

    return body


RULES: dict[str, Callable[..., Any]] = {
    "amax": named(_shared(True)),
    "amin": named(_shared(False)),
    "aminmax": named(_aminmax),
    "argmax": named(_position(True)),
    "argmin": named(_position(False)),
    "max": named(_extremum_or_pair(True)),
    "min": named(_extremum_or_pair(False)),
}
