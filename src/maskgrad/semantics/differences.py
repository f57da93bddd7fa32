"""Differences of neighbours: elementwise between positions, so specified where every entry that is read is.

A difference belongs to two places, one apart. Deleting what lies between two entries would make neighbours of
entries that are not, and call a step of two a step of one; so nothing is deleted here, and a gap stays a gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.semantics.dimensions import as_dim, as_dims
from maskgrad.semantics.entries import Entries, Operand, filler_as, mask_of, values_of
from maskgrad.semantics.facts import of_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def diff(
    input: Operand,
    n: int = 1,
    dim: int = -1,
    prepend: Operand | None = None,
    append: Operand | None = None,
) -> Entries:
    """The n-th difference; specified where the n + 1 entries it is made of are."""
    parts = [part for part in (prepend, input, append) if part is not None]
    # linear: what is under a mask can disturb nothing
    ends = [None if end is None else values_of(end) for end in (prepend, append)]
    values = torch.diff(values_of(input), n, dim, *ends)
    mask = torch.cat([mask_of(part) for part in parts], dim) if len(parts) > 1 else mask_of(input)
    if n == 0:  # torch then joins nothing either
        return Entries(values, mask_of(input))
    for _ in range(min(n, mask.shape[dim])):
        size = mask.shape[dim] - 1
        mask = mask.narrow(dim, 1, size) & mask.narrow(dim, 0, size)
    return Entries(values, mask)


def _stencil(mask: Tensor, dim: int, center: bool, edge_order: int) -> Tensor:
    """Where all entries that a numerical derivative reads are specified."""
    size = mask.shape[dim]
    edge = edge_order + 1
    first = mask.narrow(dim, 0, edge).all(dim, keepdim=True)
    last = mask.narrow(dim, size - edge, edge).all(dim, keepdim=True)
    inner = mask.narrow(dim, 0, size - 2) & mask.narrow(dim, 2, size - 2)
    if center:
        inner = inner & mask.narrow(dim, 1, size - 2)
    return torch.cat([first, inner, last], dim)


def _known_coordinates(coordinates: Entries) -> Tensor:
    """Missing coordinates replaced by numbers beyond all others, each its own: no distance becomes 0."""
    values, mask = coordinates
    known = values.detach()
    reach = torch.where(mask & torch.isfinite(known), known, 0).abs().amax() + 1
    beyond = reach * torch.arange(2, 2 + len(values), device=values.device)
    return torch.where(mask, values, beyond.to(values.dtype))


def gradient(
    input: Operand, *, spacing: Any = None, dim: Any = None, edge_order: int = 1
) -> tuple[Entries, ...]:
    """The numerical derivative along each dimension, by central differences.

    Where the spacing is a number an inner result does not read the entry it stands on, and does not need it.
    """
    values, mask = values_of(input), mask_of(input)
    dims = (as_dim(dim, values.ndim),) if isinstance(dim, int) else as_dims(dim, values.ndim)
    if not dims:  # a number has no directions
        return ()
    lists = isinstance(spacing, (list, tuple))
    steps: Sequence[Any] = spacing if lists else [spacing] * len(dims)
    safe_steps = [_known_coordinates(step) if isinstance(step, Entries) else step for step in steps]
    # coordinates have gradients, to which garbage must not be a factor
    safe = torch.where(mask, values, filler_as(values.dtype, 0))
    spacings = {} if spacing is None else {"spacing": safe_steps if lists else safe_steps[0]}
    results = torch.gradient(safe, dim=dims, edge_order=edge_order, **spacings)
    found = []
    for result, d, step in zip(results, dims, steps, strict=True):
        read = mask
        if isinstance(step, Entries):
            read = mask & step.mask.reshape([-1 if i == d else 1 for i in range(mask.ndim)])
        coordinates = isinstance(step, (Entries, torch.Tensor)) and values_of(step).ndim > 0
        found.append(Entries(result, _stencil(read, d, coordinates, edge_order)))
    return tuple(found)


OPERATIONS = tuple(
    of_rule(
        rule,
        "scans",
        f"specified where all {read} were",
        "to the entries read",
        namespaces=(torch, torch.Tensor),
    )
    for rule, read in ((diff, "n + 1 neighbours"), (gradient, "entries that are read"))
)
