"""Sampling at given places: a result is specified where its place is, and all neighbours of non-zero weight are.

What padding supplies outside (zeros) is specified. The derivative by the place looks at all neighbours, also at those
of weight 0 next to a place exactly on a pixel; where one of them is unspecified it does not exist, and is 0.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from maskgrad.semantics.entries import Entries, safe
from maskgrad.semantics.facts import record
from maskgrad.semantics.signatures import bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


#: torch's numbers for its names.
MODES = {"bilinear": 0, "nearest": 1, "bicubic": 2}
PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}
#: Where the neighbours along a dimension are, from the one at or below the place.
NEIGHBOURS = {0: (0, 1), 1: (0,), 2: (-1, 0, 1, 2)}

#: A place this near to a pixel, in units in the last place of a coordinate, is on it.
ROUNDINGS = 2

#: Dtypes in which coordinates are so coarse that PyTorch's own arithmetic decides on which pixels they fall.
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
    """Where no unspecified neighbour has a weight, (N, C, *results), by sampling the mask itself.

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
    """Where all neighbours that have a weight are specified, (N, C, *results), and which derivatives do not exist.

    The derivative by a coordinate looks at both sides along its dimension, whatever their weights: (N, *results, rank).
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
    if mode != MODES["bicubic"]:  # which pads its neighbours, not the place
        x = _padded(x, length, padding, align_corners)
    tolerance = ROUNDINGS * torch.finfo(x.dtype).eps * length
    nearest = x.round()  # to even, as torch does
    on_pixel = (x - nearest).abs() <= tolerance
    start = nearest if mode == MODES["nearest"] else torch.where(on_pixel, nearest, x.floor())
    taps = []
    for offset in NEIGHBOURS[mode]:
        position = start + offset
        if mode == MODES["bicubic"]:
            position = _padded(position, length, padding, align_corners).round()
        inside = (position >= 0) & (position <= length - 1)
        safe_position = torch.where(inside, position, 0).long()
        taps.append((safe_position, inside, torch.full_like(on_pixel, offset == 0) | ~on_pixel))
    return taps


def _padded(x: Tensor, length: int, padding: int, align_corners: bool) -> Tensor:
    """Coordinates outside the data brought inside, as the padding says."""
    if padding == PADDINGS["reflection"]:
        low, span = (0.0, length - 1.0) if align_corners else (-0.5, float(length))
        if span == 0:
            return torch.zeros_like(x)
        distance = (x - low).abs()
        turns, rest = (distance / span).floor(), distance.fmod(span)
        x = torch.where(turns % 2 == 0, rest + low, span - rest + low)
    return x.clamp(0, length - 1) if padding != PADDINGS["zeros"] else x


PATTERN = "specified where the place and all neighbours of non-zero weight are"
GRADIENT = "torch's, at the specified entries"

OPERATIONS = tuple(
    record(name, "interpolation", grid_sample, PATTERN, GRADIENT)
    for name in ("nn.functional.grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
)
