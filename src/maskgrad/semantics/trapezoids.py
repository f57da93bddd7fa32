"""Integrals by the trapezoidal rule: over the specified points, with the others deleted.

With coordinates, an interval joins a specified point to the specified point before it, whatever was missing between
the two. Without, the points that are left are one step apart: torch's result on the deleted vector. (Whoever means
a grid with holes gives its coordinates.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad import kernels
from maskgrad.kernels.smallest import any_of
from maskgrad.semantics.compaction import positions_along, previous_specified
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import HALVES, Entries, as_entries, filler_as, widened
from maskgrad.semantics.facts import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from maskgrad.semantics.facts import Operation


def _checked(y: Any, dim: int, name: str) -> Entries:
    points = as_entries(y)
    if points.values.dtype == torch.bool:
        raise RuntimeError(f"{name}: received a bool input for `y`, but bool is not supported")
    if points.values.ndim == 0:
        raise IndexError(f"{name}: y has no dimensions, found dim {dim}")
    as_dim(dim, points.values.ndim)
    return points


def _with_coordinates(y: Entries, x: Entries, dim: int, name: str) -> tuple[Entries, Entries, int]:
    """Points and coordinates in one shape, with one mask, and the dimension counted from the front."""
    if x.values.dtype == torch.bool:
        raise RuntimeError(f"{name}: received a bool input for `x`, but bool is not supported")
    size = y.values.shape[dim]
    if x.values.ndim == 1:
        shape = [1] * y.values.ndim
        shape[dim] = -1
        x = Entries(x.values.reshape(shape), x.mask.reshape(shape))
    if x.values.ndim > y.values.ndim and dim >= 0:
        raise RuntimeError(
            f"{name}: x has more dimensions ({x.values.ndim}) than y ({y.values.ndim}); count dim from the back"
        )
    aligned = dim - y.values.ndim if dim >= 0 else dim
    if x.values.ndim < -aligned or x.values.shape[aligned] != size:
        raise RuntimeError(f"{name}: There must be one `x` value for each sample point")
    mask = y.mask & x.mask
    points, coordinates = torch.broadcast_tensors(y.values, x.values)
    return Entries(points, mask), Entries(coordinates, mask), aligned % mask.ndim


def _sums_of_ends(y: Entries, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """For the interval that ends at each point: y at its two ends added up, 0 if there is none; whence; whether."""
    previous = previous_specified(y.mask, dim)
    exists = y.mask & (previous >= 0)
    previous = previous.clamp(min=0)
    zero = filler_as(y.values.dtype, 0)
    safe = torch.where(y.mask, y.values, zero)
    return torch.where(exists, safe + safe.gather(dim, previous), zero), previous, exists


def _areas(y: Entries, x: Entries, dim: int) -> tuple[Tensor, Tensor]:
    """Twice the area of the interval that ends at each point, 0 if there is none, and whether there is one."""
    ends, previous, exists = _sums_of_ends(y, dim)
    zero = filler_as(x.values.dtype, 0)
    safe = torch.where(x.mask, x.values, zero)
    return ends * torch.where(exists, safe - safe.gather(dim, previous), zero), exists


def _unit_trapezoid(y: Entries, dx: float, dim: int) -> Tensor:
    """Torch's formula for equal steps: the sum, less half of the two outermost points."""
    values, mask = y
    wide = widened(values)
    total, _ = kernels.masked_sum(wide, mask, (dim,), False, None)
    positions = positions_along(mask, dim)
    first = torch.where(mask, positions, mask.shape[dim] - 1).amin(dim, keepdim=True)
    last = torch.where(mask, positions, 0).amax(dim, keepdim=True)
    safe = torch.where(mask, wide, filler_as(wide.dtype, 0))
    ends = (safe.gather(dim, first) + safe.gather(dim, last)).squeeze(dim)
    result = (total - ends * 0.5) * dx
    return result.to(values.dtype) if values.dtype in HALVES else result


def trapezoid(y: Any, x: Any = None, *, dx: Any = None, dim: int = -1) -> Entries:
    """The integral over the specified points; one point has the integral 0."""
    points = _checked(y, dim, "trapezoid")
    if x is None:
        along = as_dim(dim, points.values.ndim)
        if points.values.shape[along] == 0:
            return Entries(torch.trapezoid(points.values, dim=along), any_of(points.mask, (along,)))
        return Entries(_unit_trapezoid(points, 1 if dx is None else dx, along), any_of(points.mask, (along,)))
    points, coordinates, along = _with_coordinates(points, as_entries(x), dim, "trapezoid")
    if points.values.shape[along] == 0:
        values = torch.trapezoid(points.values, coordinates.values, dim=along)
        return Entries(values, any_of(points.mask, (along,)))
    areas, _ = _areas(points, coordinates, along)
    return Entries(areas.sum(along) / 2.0, any_of(points.mask, (along,)))


def cumulative_trapezoid(y: Any, x: Any = None, *, dx: Any = None, dim: int = -1) -> Entries:
    """The integral up to each specified point but the first; result i stands for point i + 1."""
    points = _checked(y, dim, "cumulative_trapezoid")
    if x is None:
        along = as_dim(dim, points.values.ndim)
        step = 1 if dx is None else dx
    else:
        points, coordinates, along = _with_coordinates(points, as_entries(x), dim, "cumulative_trapezoid")
    if points.values.shape[along] == 0:
        values = torch.cumulative_trapezoid(points.values, dim=along)
        return Entries(values, points.mask)
    count = points.values.shape[along] - 1
    if x is None:
        ends, _, exists = _sums_of_ends(points, along)
        values = (step / 2.0) * ends.narrow(along, 1, count).cumsum(along)
    else:
        areas, exists = _areas(points, coordinates, along)
        values = areas.narrow(along, 1, count).cumsum(along) / 2.0
    return Entries(values, exists.narrow(along, 1, count))


def _record(names: str, rule: Callable[..., Entries], pattern: str) -> Operation:
    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # not signatures.named: x is a name of its own here
        return rule(*args, **kwargs)

    return record(names, "scans", body, pattern, "torch's on the specified points")


OPERATIONS = (
    _record("trapezoid trapz", trapezoid, "specified where at least one point was"),
    _record(
        "cumulative_trapezoid",
        cumulative_trapezoid,
        "specified where a specified point ends an interval, that is, has another one before it",
    ),
)
