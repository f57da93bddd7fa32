"""Extrema of the specified entries, their positions, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.mode import can_read
from maskgrad.semantics.dimensions import as_dim, as_dims
from maskgrad.semantics.entries import Entries, all_specified, filler_as, specified
from maskgrad.semantics.entries import fill as fill_operand
from maskgrad.semantics.facts import of_rule, record
from maskgrad.semantics.signatures import SYNONYMS, paired

PATTERN = "specified where at least one entry was"


def _extremum(input: Entries, dim: Any, keepdim: bool, largest: bool) -> Entries:
    dims = as_dims(dim, input.values.ndim)
    return Entries(*kernels.masked_extremum(input.values, input.mask, dims, keepdim, largest))


def amax(input: Entries, dim: Any = (), keepdim: bool = False) -> Entries:
    """Largest specified entry; its gradient is shared among ties."""
    return _extremum(input, dim, keepdim, True)


def amin(input: Entries, dim: Any = (), keepdim: bool = False) -> Entries:
    """Smallest specified entry; its gradient is shared among ties."""
    return _extremum(input, dim, keepdim, False)


def aminmax(input: Entries, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """Smallest and largest specified entry."""
    kind: Any = torch.return_types.aminmax  # holds entries instead of tensors until dispatch wraps them
    return kind([_extremum(input, dim, keepdim, largest) for largest in (False, True)])


def _position(input: Entries, dim: int | None, keepdim: bool, largest: bool) -> Entries:
    if dim is None:
        flat = Entries(input.values.reshape(-1), input.mask.reshape(-1))
        index, present = kernels.masked_position(flat.values.detach(), flat.mask, 0, False, largest)
        shape = (1,) * input.values.ndim if keepdim else ()
        return Entries(index.reshape(shape), present.reshape(shape))
    if input.values.ndim == 0:
        as_dim(dim, 0)
        return Entries(torch.zeros_like(input.values, dtype=torch.int64), input.mask)
    return Entries(*kernels.masked_position(input.values.detach(), input.mask, dim, keepdim, largest))


def argmax(input: Entries, dim: int | None = None, keepdim: bool = False) -> Entries:
    """Position, counted in the original tensor, of the first largest specified entry."""
    return _position(input, dim, keepdim, True)


def argmin(input: Entries, dim: int | None = None, keepdim: bool = False) -> Entries:
    """Position, counted in the original tensor, of the first smallest specified entry."""
    return _position(input, dim, keepdim, False)


def shared_by_equals(input: Entries, found: Tensor) -> Tensor:
    """``found``, whose gradient the entries equal to it share, NaN too."""
    values, mask = input
    equal = mask & same(values.detach(), found)
    mean, _ = kernels.masked_mean(values, equal, tuple(range(values.ndim)), False)
    # the exact value with the gradient of the mean; infinite ones have no rounding to correct
    return torch.where(found.isfinite(), found + (mean - mean.detach()), mean)


def same(a: Tensor, b: Tensor) -> Tensor:
    """Equality in which NaN equals NaN."""
    return (a == b) | ((a != a) & (b != b))


def _extremum_or_pair(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], largest: bool
) -> Any:
    """``torch.max`` in its three forms: over all entries, along one dimension (with positions), of two tensors."""
    kwargs = {SYNONYMS.get(key, key): value for key, value in kwargs.items()}
    second = args[1] if len(args) > 1 else kwargs.get("other", kwargs.get("dim"))
    if isinstance(second, (Entries, torch.Tensor)):
        mask = all_specified(*args, *kwargs.values())
        filled = [fill_operand(a, mask, 1) for a in (*args, *kwargs.values())]
        return specified((torch.maximum if largest else torch.minimum)(*filled), mask)
    arguments = paired(("input", "dim", "keepdim"), args) | kwargs
    input, dim = arguments["input"], arguments.get("dim")
    if dim is None:
        best = _extremum(input, None, False, largest)
        if not best.values.is_floating_point() or (can_read(best.values) and not best.values.isnan()):
            return best
        return Entries(shared_by_equals(input, best.values.detach()), best.mask)  # unlike amax, by NaN too
    keepdim = arguments.get("keepdim", False)
    kind: Any = torch.return_types.max if largest else torch.return_types.min
    if input.values.ndim == 0:
        return kind([input, _position(input, dim, keepdim, largest)])
    index, mask = kernels.masked_position(input.values.detach(), input.mask, dim, keepdim, largest)
    found = input.values.gather(dim, index if keepdim else index.unsqueeze(dim))
    # Without entries, position 0 is read, but its value and gradient are masked.
    values = torch.where(mask, found if keepdim else found.squeeze(dim), filler_as(found.dtype, 0))
    return kind([Entries(values, mask), Entries(index, mask)])


def max(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Largest specified entry, along a dimension with its position, or the larger of two tensors."""
    return _extremum_or_pair(function, args, kwargs, True)


def min(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Smallest specified entry, along a dimension with its position, or the smaller of two tensors."""
    return _extremum_or_pair(function, args, kwargs, False)


SHARED = "shared equally among the specified entries that attain it"
FIRST = f"to the first winner along dim; without dim {SHARED}"
OPERATIONS = (
    *(of_rule(rule, "reductions", PATTERN, SHARED, padded="mask") for rule in (amax, amin, aminmax)),
    *(of_rule(rule, "reductions", PATTERN, padded="mask") for rule in (argmax, argmin)),
    *(record(body.__name__, "reductions", body, PATTERN, FIRST, padded="mask") for body in (max, min)),
)
