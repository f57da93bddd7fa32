"""Interpolation, by sizes or at given points: specified where the point and all neighbours of non-zero weight are.

An interpolation works along one dimension after the other. The weights along a dimension come from PyTorch's own
function, applied to unit vectors; the mask of a result is the conjunction over the few neighbours with a weight.

``mode="area"`` is adaptive average pooling in PyTorch, and here: over the specified entries.

Padding outside the data of ``grid_sample`` (zeros) is specified. The derivative by a point depends on all
neighbours, also on those of weight 0 next to a point exactly on a pixel; if one of them is unspecified it does not
exist, and is 0.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.semantics.autocasting import as_autocast
from maskgrad.semantics.entries import Entries, safe
from maskgrad.semantics.facts import record
from maskgrad.semantics.nonfinite_products import NONE_AT_ALL
from maskgrad.semantics.pooling import adaptive_average, as_tuple, shared
from maskgrad.semantics.signatures import bound, paired

#: Modes that copy.
MOVING = ("nearest", "nearest-exact")

#: Size of the other dimensions while the weights along one are computed. Images of width 1
#: have the first result everywhere in torch 2.13 with antialias=True.
OTHERS = 2

#: Units in the last place of a coordinate up to which a difference is rounding.
ROUNDINGS = 8


def interpolate(
    input: Entries,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    *args: Any,
    **kwargs: Any,
) -> Entries:
    """``F.interpolate`` in all its modes."""
    (values, mask), rank = input, input.values.ndim - 2
    names = ("align_corners", "recompute_scale_factor", "antialias")
    given = {"size": size, "scale_factor": scale_factor, "mode": mode, **paired(names, args), **kwargs}
    if mode == "area":

        def area(function: Any, args: Any, kwargs: Any) -> Entries:
            return adaptive_average(args[0], lambda x: F.interpolate(x, **given), rank)

        return as_autocast(f"adaptive_avg_pool{rank}d", area, (input,), False)(None, (input,), {})  # type: ignore[no-any-return]
    result = F.interpolate(safe(input), **given)
    mask = shared(mask, rank)
    if mode in MOVING:
        known = F.interpolate(mask.float(), **given) > NONE_AT_ALL
        return Entries(result, known.expand(result.shape))
    for i in range(rank):
        weights = _weights(given, values.shape[2 + i], result.shape[2 + i], i, rank)
        mask = _all_neighbours(mask, 2 + i, weights)
    return Entries(result, mask.expand(result.shape))


def _weights(given: dict[str, Any], length: int, results: int, i: int, rank: int) -> Tensor:
    """The weight of each entry in each result along spatial dimension ``i``: (length, results).

    In double precision, whatever the data: a small weight must not become 0.
    """
    options = dict(given)
    if given.get("scale_factor") is not None and not given.get("recompute_scale_factor"):
        factor = as_tuple(given["scale_factor"], rank)[i]
        options["scale_factor"] = tuple(factor if d == i else 1.0 for d in range(rank))
    else:
        options["scale_factor"] = options["recompute_scale_factor"] = None
        options["size"] = [results if d == i else OTHERS for d in range(rank)]
    units = torch.eye(length, dtype=torch.float64)
    for d in range(rank):
        units = units.unsqueeze(1 if d < i else -1) if d != i else units
    sizes = [length if d == i else OTHERS for d in range(rank)]
    weights = F.interpolate(units.expand(length, *sizes).unsqueeze(0).contiguous(), **options)[0]
    for d in reversed(range(rank)):
        weights = weights.select(1 + d, 0) if d != i else weights
    return weights


def _all_neighbours(mask: Tensor, dim: int, weights: Tensor) -> Tensor:
    """True where all entries along ``dim`` that have a weight are specified."""
    tolerance = ROUNDINGS * torch.finfo(torch.float64).eps * weights.shape[0]
    has_weight = (weights.abs() > tolerance).float().to(mask.device)
    missing = (~mask).float().movedim(dim, -1) @ has_weight
    return (missing == 0).movedim(-1, dim)


def affine_grid(function: Callable[..., Any], theta: Entries, *args: Any, **kwargs: Any) -> Entries:
    """``F.affine_grid``: a coordinate needs its whole row of the transformation."""
    result = function(safe(theta), *args, **kwargs)
    rows = theta.mask.all(-1)  # N, coordinates
    between = [1] * (result.ndim - 2)
    return Entries(result, rows.reshape(rows.shape[0], *between, rows.shape[1]).expand(result.shape))


#: torch's integers for its names.
MODES = {"bilinear": 0, "nearest": 1, "bicubic": 2}
PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}
#: Offsets of the neighbours along a dimension, from the one at or below the point.
TAPS_AT = {0: (0, 1), 1: (0,), 2: (-1, 0, 1, 2)}

#: A point this near to a pixel, in units in the last place of a coordinate, is on it.
PLACE_ROUNDINGS = 2

#: Dtypes with coordinates so coarse that PyTorch's own arithmetic decides the pixel.
ROUNDED = (torch.float16, torch.bfloat16)


def grid_sample(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``F.grid_sample`` (modes by name) and ``grid_sampler`` (by number) in two and three dimensions."""
    names = ("mode", "padding_mode") if function is F.grid_sample else ("interpolation_mode", "padding_mode")
    given = bound(f"input grid {' '.join(names)} align_corners", args, kwargs)
    input, grid = given.pop("input"), given.pop("grid")
    places, seen = safe(grid), torch.ones((), dtype=torch.bool)
    if isinstance(input, Entries):
        mode, padding = (given.get(name, 0) for name in names)
        mode, padding = MODES.get(mode, mode), PADDINGS.get(padding, padding)
        seen, torn = _neighbours(input.mask, places.detach(), mode, padding, bool(given.get("align_corners")))
        if places.dtype in ROUNDED:
            seen = _weightless(
                lambda x: function(x, places.detach(), **given), input.mask, mode, places.dtype
            )
        places = torch.where(torn, places.detach(), places)
    result = function(safe(input), places, **given)
    known = seen.to(result.device).expand(result.shape)
    if isinstance(grid, Entries):
        known = known & grid.mask.all(-1).unsqueeze(1)
    return Entries(result, known)


def _weightless(function: Callable[[Tensor], Tensor], mask: Tensor, mode: int, dtype: torch.dtype) -> Tensor:
    """Mask of results whose unspecified neighbours have weight 0, (N, C, *results), by sampling the mask itself.

    Bicubic weights have both signs and could cancel: there the pixels are sampled in 16 classes, of which no two in one
    neighbourhood share one.
    """
    missing = [~mask]
    if mode == MODES["bicubic"]:
        rows, columns = (torch.arange(length, device=mask.device) % 4 for length in mask.shape[2:])
        kind = rows.unsqueeze(1) * 4 + columns
        missing = [~mask & (kind == k) for k in range(16)]
    weights: Tensor = function(torch.cat(missing, 1).to(dtype)).unflatten(1, (len(missing), -1))
    return (weights == 0).all(1)


def _neighbours(
    mask: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool
) -> tuple[Tensor, Tensor]:
    """Masks of results whose weighted neighbours are specified, (N, C, *results), and of missing derivatives.

    The derivative by a coordinate uses both sides along its dimension, with any weights: (N, *results, rank).
    """
    lengths, rank = mask.shape[2:], mask.ndim - 2
    if mask.shape[1] > 1 and mask.stride(1) == 0:  # one mask for all channels
        mask = mask.narrow(1, 0, 1)
    grid = grid.float() if grid.dtype in ROUNDED else grid
    taps = [
        _taps(grid[..., rank - 1 - d], length, mode, padding, align_corners)
        for d, length in enumerate(lengths)
    ]
    data = mask.flatten(2)
    results = (*mask.shape[:2], *grid.shape[1:-1])
    every = torch.ones(results, dtype=torch.bool, device=mask.device)
    seen, sides = every, [every] * rank
    for choice in itertools.product(*taps):
        index, inside = choice[0][0], choice[0][1]
        for length, (position, within, _) in zip(lengths[1:], choice[1:], strict=True):
            index, inside = index * length + position, inside & within
        there = data.gather(2, index.flatten(1).unsqueeze(1).expand(-1, data.shape[1], -1)).reshape(results)
        there = there | ~inside.unsqueeze(1)
        weighty = [weight.unsqueeze(1) for _, _, weight in choice]
        idle = [~weight for weight in weighty]
        seen = seen & (there | functools.reduce(torch.logical_or, idle))
        for d in range(rank):
            others = [*idle[:d], *idle[d + 1 :]]
            sides[d] = sides[d] & functools.reduce(torch.logical_or, others, there)
    torn = [(seen & ~side).any(1) for side in reversed(sides)]  # coordinates come in the opposite order
    return seen, torch.stack(torn, -1)


def _taps(
    place: Tensor, length: int, mode: int, padding: int, align_corners: bool
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The neighbours along one dimension: position, whether it is in the data, whether its weight is not 0."""
    x = (place + 1) / 2 * (length - 1) if align_corners else ((place + 1) * length - 1) / 2
    if mode != MODES["bicubic"]:  # which pads its neighbours, not the point
        x = _padded(x, length, padding, align_corners)
    tolerance = PLACE_ROUNDINGS * torch.finfo(x.dtype).eps * length
    nearest = x.round()  # to even, as torch does
    on_pixel = (x - nearest).abs() <= tolerance
    start = nearest if mode == MODES["nearest"] else torch.where(on_pixel, nearest, x.floor())
    taps = []
    for offset in TAPS_AT[mode]:
        position = start + offset
        if mode == MODES["bicubic"]:
            position = _padded(position, length, padding, align_corners).round()
        inside = (position >= 0) & (position <= length - 1)
        safe_position = torch.where(inside, position, 0).long()
        taps.append((safe_position, inside, torch.full_like(on_pixel, offset == 0) | ~on_pixel))
    return taps


def _padded(x: Tensor, length: int, padding: int, align_corners: bool) -> Tensor:
    """Move coordinates outside the data inside, depending on the padding mode."""
    if padding == PADDINGS["reflection"]:
        low, span = (0.0, length - 1.0) if align_corners else (-0.5, float(length))
        if span == 0:
            return torch.zeros_like(x)
        distance = (x - low).abs()
        turns, rest = (distance / span).floor(), distance.fmod(span)
        x = torch.where(turns % 2 == 0, rest + low, span - rest + low)
    return x.clamp(0, length - 1) if padding != PADDINGS["zeros"] else x


PATTERN = "specified where all neighbours of non-zero weight are"
AT_PLACES = "specified where the point and all neighbours of non-zero weight are"
OF_ROWS = "specified where the row of the transformation is"
GRADIENT = "torch's, at the specified entries"
# The old names call the new one, which is dispatched.
INTERPOLATE = "nn.functional.interpolate upsample upsample_nearest upsample_bilinear"

OPERATIONS = (
    record(INTERPOLATE, "interpolation", interpolate, PATTERN, GRADIENT, padded="mask"),
    record(
        "nn.functional.affine_grid",
        "interpolation",
        affine_grid,
        OF_ROWS,
        GRADIENT,
        extra=(torch.affine_grid_generator,),
    ),
    *(
        record(name, "interpolation", grid_sample, AT_PLACES, GRADIENT)
        for name in ("nn.functional.grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
    ),
)
