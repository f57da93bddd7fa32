"""Differences of neighbours, and integrals by the trapezoidal rule.

Differences are elementwise between positions, so specified where every entry read is.

Entries are not deleted here: deleting the gap between two entries would make them neighbours, and turn a step of
two into a step of one. So a gap stays a gap.

Integrals are over the specified points, with the others deleted. With coordinates, an interval joins each specified
point to the previous one, whatever was missing between them. Without, the remaining points are one step
apart: torch's result on the deleted vector. (For a grid with holes, pass its coordinates.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels.smallest import any_of
from maskgrad.semantics.dimensions import as_dim, as_dims, previous_specified
from maskgrad.semantics.entries import Entries, Operand, as_entries, filled, filler_as, mask_of, values_of
from maskgrad.semantics.facts import Operation, of_rule, record


def diff(
    input: Operand,
    n: int = 1,
    dim: int = -1,
    prepend: Operand | None = None,
    append: Operand | None = None,
) -> Entries:
    """The n-th difference; specified where the n + 1 entries it reads are."""
    parts = [part for part in (prepend, input, append) if part is not None]
    # linear: masked values cannot interfere
    ends = [None if end is None else values_of(end) for end in (prepend, append)]
    values = torch.diff(values_of(input), n, dim, *ends)
    mask = torch.cat([mask_of(part) for part in parts], dim) if len(parts) > 1 else mask_of(input)
    if n == 0:  # torch then ignores prepend and append, too
        return Entries(values, mask_of(input))
    for _ in range(min(n, mask.shape[dim])):
        size = mask.shape[dim] - 1
        mask = mask.narrow(dim, 1, size) & mask.narrow(dim, 0, size)
    return Entries(values, mask)


def _stencil(mask: Tensor, dim: int, center: bool, edge_order: int) -> Tensor:
    """Return where all entries that a numerical derivative reads are specified."""
    size = mask.shape[dim]
    edge = edge_order + 1
    first = mask.narrow(dim, 0, edge).all(dim, keepdim=True)
    last = mask.narrow(dim, size - edge, edge).all(dim, keepdim=True)
    inner = mask.narrow(dim, 0, size - 2) & mask.narrow(dim, 2, size - 2)
    if center:
        inner = inner & mask.narrow(dim, 1, size - 2)
    return torch.cat([first, inner, last], dim)


def _known_coordinates(coordinates: Entries) -> Tensor:
    """Missing coordinates replaced by distinct values beyond all others: no distance becomes 0."""
    values, mask = coordinates
    known = values.detach()
    reach = torch.where(mask & torch.isfinite(known), known, 0).abs().amax() + 1
    beyond = reach * torch.arange(2, 2 + len(values), device=values.device)
    return torch.where(mask, values, beyond.to(values.dtype))


def gradient(
    input: Operand, *, spacing: Any = None, dim: Any = None, edge_order: int = 1
) -> tuple[Entries, ...]:
    """The numerical derivative along each dimension, by central differences.

    With scalar spacing, inner results do not depend on the entry at their own position.
    """
    values, mask = values_of(input), mask_of(input)
    dims = (as_dim(dim, values.ndim),) if isinstance(dim, int) else as_dims(dim, values.ndim)
    if not dims:  # a scalar has no directions
        return ()
    lists = isinstance(spacing, (list, tuple))
    steps: Sequence[Any] = spacing if lists else [spacing] * len(dims)
    safe_steps = [_known_coordinates(step) if isinstance(step, Entries) else step for step in steps]
    # coordinates have gradients, in which garbage must not be a factor
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


def _checked(
    points: Operand, coordinates: Operand | None, dim: int, name: str
) -> tuple[Entries, Entries | None, int]:
    """Points and coordinates in one shape, with one mask, and the dimension counted from the front."""
    y, x = as_entries(points), None if coordinates is None else as_entries(coordinates)
    for part, letter in ((y, "y"), (x, "x")):
        if part is not None and part.values.dtype == torch.bool:
            raise RuntimeError(f"{name}: received a bool input for `{letter}`, but bool is not supported")
    if y.values.ndim == 0:
        raise IndexError(f"{name}: y has no dimensions, got dim {dim}")
    along = as_dim(dim, y.values.ndim)
    if x is None:
        return y, None, along
    size = y.values.shape[dim]
    if x.values.ndim == 1:
        shape = [1] * y.values.ndim
        shape[dim] = -1
        x = Entries(*(part.reshape(shape) for part in x))
    if x.values.ndim > y.values.ndim and dim >= 0:
        raise RuntimeError(
            f"{name}: x has more dimensions ({x.values.ndim}) than y ({y.values.ndim}); count dim from the back"
        )
    aligned = dim - y.values.ndim if dim >= 0 else dim
    if x.values.ndim < -aligned or x.values.shape[aligned] != size:
        raise RuntimeError(f"{name}: There must be one `x` value for each sample point")
    mask = y.mask & x.mask
    ys, xs = torch.broadcast_tensors(y.values, x.values)
    return Entries(ys, mask), Entries(xs, mask), aligned % mask.ndim


def _areas(y: Entries, x: Entries | None, dx: Any, dim: int) -> tuple[Tensor, Tensor]:
    """Twice the area of the interval that ends at each point, 0 if there is none, and whether there is one."""
    previous = previous_specified(y.mask, dim)
    exists = y.mask & (previous >= 0)
    previous, safe = previous.clamp(min=0), filled(y)
    if x is None and not (safe.is_floating_point() or safe.is_complex()):
        safe = safe.to(torch.get_default_dtype())
    ends = torch.where(exists, safe + safe.gather(dim, previous), filler_as(safe.dtype, 0))
    if x is None:
        return ends * (1 if dx is None else dx), exists
    places = filled(x)
    steps = torch.where(exists, places - places.gather(dim, previous), filler_as(places.dtype, 0))
    return ends * steps, exists


def trapezoid(y: Operand, x: Operand | None = None, *, dx: Any = None, dim: int = -1) -> Entries:
    """The integral over the specified points; one point has the integral 0."""
    points, coordinates, along = _checked(y, x, dim, "trapezoid")
    if points.values.shape[along] == 0:
        values = torch.trapezoid(points.values, dim=along)
    else:
        values = _areas(points, coordinates, dx, along)[0].sum(along) / 2.0
    return Entries(values, any_of(points.mask, (along,)))


def cumulative_trapezoid(y: Operand, x: Operand | None = None, *, dx: Any = None, dim: int = -1) -> Entries:
    """The integral up to each specified point except the first; result i stands for point i + 1."""
    points, coordinates, along = _checked(y, x, dim, "cumulative_trapezoid")
    if points.values.shape[along] == 0:
        return Entries(torch.cumulative_trapezoid(points.values, dim=along), points.mask)
    count = points.values.shape[along] - 1
    areas, exists = _areas(points, coordinates, dx, along)
    values = areas.narrow(along, 1, count).cumsum(along) / 2.0
    return Entries(values, exists.narrow(along, 1, count))


def _trapezoids(names: str, rule: Callable[..., Entries], pattern: str) -> Operation:
    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return rule(*args, **kwargs)  # x is a separate argument here, not a synonym

    return record(names, "scans", body, pattern, "torch's on the specified points", padded="mask")


NEIGHBOURS = "specified where all n + 1 neighbours were", "to the entries read"
READ = "specified where all entries that are read were", "to the entries read"
INTERVAL = "specified where a specified point has a specified point before it"

OPERATIONS = (
    of_rule(diff, "scans", *NEIGHBOURS, namespaces=(torch, torch.Tensor), padded="mask"),
    of_rule(gradient, "scans", *READ, namespaces=(torch, torch.Tensor), padded="mask"),
    _trapezoids("trapezoid trapz", trapezoid, "specified where at least one point was"),
    _trapezoids("cumulative_trapezoid", cumulative_trapezoid, INTERVAL),
)
