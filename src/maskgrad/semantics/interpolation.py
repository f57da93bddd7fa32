"""Interpolation, by sizes or at given points: specified where the point and all neighbours of non-zero weight are.

PyTorch's own function, applied to what is missing, says which results give it a weight.

``mode="area"`` is adaptive average pooling in PyTorch, and here: over the specified entries.

Padding outside the data of ``grid_sample`` (zeros) is specified. The derivative by a point depends on all neighbours,
also on those of weight 0 next to a point exactly on a pixel; if one of them is unspecified, it is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.semantics.autocasting import as_autocast
from maskgrad.semantics.entries import HALVES, Entries, safe
from maskgrad.semantics.facts import record
from maskgrad.semantics.pooling import adaptive_average, precise, shared
from maskgrad.semantics.signatures import bound, paired

#: Units in the last place of a coordinate up to which a difference is rounding.
ROUNDINGS = 8
#: In double precision: what a weight of 0 may become, and a part of a pixel, whose square still weighs more (bicubic).
WEIGHTLESS, STEP = 1e-12, 2e-6
GOLDEN = (5**0.5 - 1) / 2


def _unequal(missing: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers between 1 and 2 where entries are missing: bicubic weights have both signs, and would cancel for ones."""
    numbers = torch.arange(missing.shape[2:].numel(), device=missing.device).to(dtype) * GOLDEN
    return torch.where(missing, 1 + numbers.frac().reshape(missing.shape[2:]), 0)


def _tolerance(missing: Tensor) -> float:
    """What a weight of 0 may become by rounding."""
    return ROUNDINGS * torch.finfo(missing.dtype).eps * max(missing.shape[2:])


def interpolate(
    input: Entries,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    *args: Any,
    **kwargs: Any,
) -> Entries:
    """``F.interpolate`` in all its modes."""
    mask, rank = input.mask, input.values.ndim - 2
    names = ("align_corners", "recompute_scale_factor", "antialias")
    given = {"size": size, "scale_factor": scale_factor, "mode": mode, **paired(names, args), **kwargs}
    if mode == "area":

        def area(function: Any, args: Any, kwargs: Any) -> Entries:
            return adaptive_average(args[0], lambda x: F.interpolate(x, **given), rank)

        return as_autocast(f"adaptive_avg_pool{rank}d", area, (input,), False)(None, (input,), {})  # type: ignore[no-any-return]
    result = F.interpolate(safe(input), **given)
    missing = _unequal(~shared(mask, rank), precise(mask))
    known = F.interpolate(missing, **given).abs() <= _tolerance(missing)
    return Entries(result, known.expand(result.shape))


def affine_grid(function: Callable[..., Any], theta: Entries, *args: Any, **kwargs: Any) -> Entries:
    """``F.affine_grid``: a coordinate needs its whole row of the transformation."""
    result = function(safe(theta), *args, **kwargs)
    rows = theta.mask.all(-1)  # N, coordinates
    between = [1] * (result.ndim - 2)
    return Entries(result, rows.reshape(rows.shape[0], *between, rows.shape[1]).expand(result.shape))


def grid_sample(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``F.grid_sample`` (modes by name) and ``grid_sampler`` (by number) in two and three dimensions."""
    mode = "mode" if function is F.grid_sample else "interpolation_mode"
    given = bound(f"input grid {mode} padding_mode align_corners", args, kwargs)
    input, grid = given.pop("input"), given.pop("grid")
    places, seen = safe(grid), torch.ones((), dtype=torch.bool)
    if isinstance(input, Entries):
        holes = ~input.mask
        holes = holes[:, :1] if holes.shape[1] > 1 and input.mask.stride(1) == 0 else holes
        corners = bool(given.get("align_corners"))
        seen, torn = _neighbours(lambda x, at: function(x, at, **given), holes, places.detach(), corners)
        places = torch.where(torn, places.detach(), places)
    result = function(safe(input), places, **given)
    known = seen.to(result.device).expand(result.shape)
    if isinstance(grid, Entries):
        known = known & grid.mask.all(-1).unsqueeze(1)
    return Entries(result, known)


def _neighbours(
    sample: Callable[[Tensor, Tensor], Tensor], holes: Tensor, places: Tensor, align_corners: bool
) -> tuple[Tensor, Tensor]:
    """Masks of results whose weighted neighbours are specified, and of derivatives that lack one on either side."""
    # coordinates come in the opposite order
    lengths = places.new_tensor(holes.shape[:1:-1], dtype=torch.float64)
    span = (lengths - 1).clamp(min=1) if align_corners else lengths
    zero = 0.0 if align_corners else 0.5
    if places.dtype in HALVES:  # coordinates so coarse that PyTorch's own arithmetic decides the pixel
        at, missing, tolerance = places, _unequal(holes, places.dtype), 0.0
        part = _tolerance(missing)
    else:
        pixels = (places.double() + 1) * span / 2 - zero
        on_pixel = (pixels - pixels.round()).abs() <= ROUNDINGS * torch.finfo(places.dtype).eps * lengths
        at = (torch.where(on_pixel, pixels.round(), pixels) + zero) * 2 / span - 1
        missing, tolerance, part = _unequal(holes, torch.float64), WEIGHTLESS, STEP
    seen = sample(missing, at).abs() <= tolerance
    steps = torch.diag(part * 2 / span).to(at.dtype)
    torn = [(seen & (sample(missing, at + step).abs() > tolerance)).any(1) for step in (*steps, *-steps)]
    one_side, other = torch.stack(torn, -1).chunk(2, -1)
    return seen, one_side | other


PATTERN = "specified where all neighbours of non-zero weight are"
AT_PLACES = "specified where the point and all neighbours of non-zero weight are"
GRADIENT = "torch's, at the specified entries"
ROWS = "specified where the row of the transformation is", GRADIENT
# The old names call the new one, which is dispatched.
INTERPOLATE = "nn.functional.interpolate upsample upsample_nearest upsample_bilinear"

OPERATIONS = (
    record(INTERPOLATE, "interpolation", interpolate, PATTERN, GRADIENT, padded="mask"),
    record(
        "nn.functional.affine_grid", "interpolation", affine_grid, *ROWS, extra=(torch.affine_grid_generator,)
    ),
    *(
        record(name, "interpolation", grid_sample, AT_PLACES, GRADIENT)
        for name in ("nn.functional.grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
    ),
)
