"""Scans: at a specified position, PyTorch's scan over the specified entries up to there.

An unspecified entry is skipped and stays unspecified. Positions from ``cummax`` and ``cummin`` refer to the
original tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from maskgrad.kernels.extrema import lowest
from maskgrad.kernels.invariant import cumulative_product, is_invariant
from maskgrad.mode import mode
from maskgrad.semantics.dimensions import as_dim, specified_last
from maskgrad.semantics.entries import Entries, fill, filler_as, widened
from maskgrad.semantics.facts import of_rule


def cumsum(input: Entries, dim: int, *, dtype: torch.dtype | None = None) -> Entries:
    """Running sum of the specified entries."""
    return Entries(fill(input, input.mask, 0).cumsum(dim, dtype=dtype), input.mask)


def cumprod(input: Entries, dim: int, *, dtype: torch.dtype | None = None) -> Entries:
    """Running product of the specified entries.

    Where gradients are recorded, they are moved to the back first, after ones. Ones among them would take part in
    the backward pass, in which every running product, possibly infinite, is multiplied by its gradient, here 0.
    """
    values, mask = input
    dim = as_dim(dim, values.ndim)
    if is_invariant() and values.ndim and values.is_floating_point() and dtype is None:
        return Entries(cumulative_product(fill(input, mask, 1), dim), mask)
    if mode() == "eager" and not (values.requires_grad and torch.is_grad_enabled()):
        return Entries(fill(input, mask, 1).cumprod(dim, dtype=dtype), mask)
    order, rank = specified_last(mask, dim)
    safe = torch.where(mask, values, filler_as(values.dtype, 1)).gather(dim, order)
    return Entries(safe.cumprod(dim, dtype=dtype).gather(dim, rank), mask)


def _running_extremum(input: Entries, dim: int, largest: bool) -> Any:
    """Values and positions; a filler wins at its own position only, as torch reports the last of ties."""
    filled = fill(input, input.mask, lowest(input.values.dtype, largest))
    found = torch.cummax(filled, dim) if largest else torch.cummin(filled, dim)
    kind: Any = type(found)
    return kind([Entries(part, input.mask) for part in found])


def cummax(input: Entries, dim: int) -> Any:
    """Running maximum of the specified entries, and its position in the original tensor."""
    return _running_extremum(input, dim, True)


def cummin(input: Entries, dim: int) -> Any:
    """Running minimum of the specified entries, and its position in the original tensor."""
    return _running_extremum(input, dim, False)


def logcumsumexp(input: Entries, dim: int) -> Entries:
    """Running log-sum-exp of the specified entries, by doubling.

    PyTorch's own backward pass takes the logarithm of the gradient, so its second derivative is NaN wherever a
    gradient is 0, as it is at every unspecified entry.
    """
    values, present = input
    dim = as_dim(dim, values.ndim)
    inexact = values.is_floating_point() or values.is_complex()
    if values.ndim == 0 or values.numel() == 0 or not inexact:  # torch refuses integers
        return Entries(values.logcumsumexp(dim), present)
    total, step = widened(fill(input, present, 0)), 1
    while step < values.shape[dim]:  # each total becomes that of the last 2 * step entries
        rest = values.shape[dim] - step
        (left, begun), (right, here) = (
            [part.narrow(dim, start, rest) for part in (total, present)] for start in (0, step)
        )
        # beside an infinite total the other counts for nothing, and its gradient is 0
        infinite = begun & (left == torch.inf) & ~right.isnan()
        both = begun & here & ~infinite & ~((right == torch.inf) & ~left.isnan())
        added = torch.stack([torch.where(both, part, 0) for part in (left, right)]).logsumexp(0)
        added = torch.where(both, added, torch.where(here & ~infinite, right, left))
        total = torch.cat([total.narrow(dim, 0, step), added], dim)
        present = torch.cat([present.narrow(dim, 0, step), begun | here], dim)
        step *= 2
    return Entries(total.to(values.dtype), input.mask)


GRADIENTS = {
    cumsum: "the sum of the gradients from there on",
    cumprod: "torch's on the specified entries",
    cummax: "to the entry that attains the maximum",
    cummin: "to the entry that attains the minimum",
    logcumsumexp: "the gradients from there on, weighted by exp(x - result)",
}
OPERATIONS = tuple(
    of_rule(rule, "scans", "unchanged", gradient, padded="rows") for rule, gradient in GRADIENTS.items()
)
