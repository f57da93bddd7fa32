"""Interpolation: a result is specified where all neighbours of non-zero weight are.

Which neighbours these are is asked of PyTorch's own function, applied to the mask: what comes out is the weight of the
unspecified. Weights of bicubic kernels have both signs and could cancel; there each pixel is given to one of so many
classes that no two pixels of one window share one, and the classes are asked one by one. A weight as small as the
rounding of the coordinates is none.

``mode="area"`` is adaptive average pooling in PyTorch, and here: over the specified entries.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import Operation
from maskgrad.semantics.pooling import adaptive_average
from maskgrad.semantics.products import safe
from maskgrad.semantics.signatures import bound
from maskgrad.semantics.windows import as_tuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["OPERATIONS", "missing_weight"]

#: Modes whose weights have both signs, and how many neighbours each takes along a dimension when nothing is shrunk.
SIGNED = {"bicubic": 4, "lanczos": 6}

#: Coordinates are rounded in units of eps times the size; weights inherit it.
ROUNDINGS = 8


def missing_weight(
    function: Callable[[Tensor], Tensor], mask: Tensor, classes: list[tuple[int, int]]
) -> Tensor:
    """The largest weight that an unspecified neighbour has, by absolute value.

    Args:
        function: interpolates (N, channels, *lengths), linear in it.
        mask: (N, C, *lengths).
        classes: dimensions with signed weights, each with the number of neighbours along it.
    """
    missing = (~mask).to(torch.float32)
    for dim, count in classes:
        kind = torch.arange(mask.shape[dim], device=mask.device) % count
        kind = kind.reshape([-1 if d == dim else 1 for d in range(mask.ndim)])
        chosen = [torch.where(kind == k, missing, 0) for k in range(min(count, mask.shape[dim]))]
        missing = torch.cat(chosen, 1)
    weights = function(missing).abs()
    return torch.amax(weights.unflatten(1, (-1, mask.shape[1])), 1)


def _negligible(lengths: Any) -> float:
    return float(ROUNDINGS * torch.finfo(torch.float32).eps * max(4, *lengths))


INTERPOLATE = "input size scale_factor mode align_corners recompute_scale_factor antialias"


def interpolate(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``F.interpolate`` in all its modes."""
    given = bound(INTERPOLATE, args, kwargs)
    input = given.pop("input")
    values, mask = input
    mode, rank = given.get("mode", "nearest"), values.ndim - 2
    if mode == "area":
        return adaptive_average(input, lambda x: F.interpolate(x, **given), rank)
    result = F.interpolate(safe(input), **given)
    if mode not in SIGNED:
        known = missing_weight(lambda x: F.interpolate(x, **given), mask, []) <= _negligible(values.shape[2:])
        return Entries(result, known)
    for step in _one_dimension_at_a_time(given, values, result):
        dim, options, count = step
        weight = missing_weight(lambda x, options=options: F.interpolate(x, **options), mask, [(dim, count)])  # type: ignore[misc]
        mask = weight <= _negligible(values.shape[2:])
    return Entries(result, mask)


def _one_dimension_at_a_time(
    given: dict[str, Any], values: Tensor, result: Tensor
) -> list[tuple[int, dict[str, Any], int]]:
    """The same interpolation as steps along one dimension, with the number of neighbours along it."""
    rank = values.ndim - 2
    lengths, results = list(values.shape[2:]), list(result.shape[2:])
    steps = []
    for i in range(rank):
        options = dict(given)
        if given.get("scale_factor") is not None and not given.get("recompute_scale_factor"):
            factors = as_tuple(given["scale_factor"], rank)
            options["scale_factor"] = tuple(f if d == i else 1.0 for d, f in enumerate(factors))
            shrinking = 1 / factors[i]
        else:
            options["scale_factor"] = options["recompute_scale_factor"] = None
            options["size"] = [*results[: i + 1], *lengths[i + 1 :]]
            shrinking = lengths[i] / results[i]
        count = SIGNED[given["mode"]]
        if given.get("antialias"):
            count = math.ceil(count * max(1.0, shrinking)) + 2
        steps.append((i + 2, options, count))
    return steps


def upsample(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """The functions of ``torch._C._nn`` that graphs use: one mode each, in their name."""
    given = bound("input", args[:1], kwargs)
    input, rest = given.pop("input"), args[1:]
    dims = range(2, input.values.ndim) if "bicubic" in function.__name__ else ()
    weight = missing_weight(
        lambda x: function(x, *rest, **given), input.mask, [(d, SIGNED["bicubic"]) for d in dims]
    )
    result = function(safe(input), *rest, **given)
    return Entries(result, weight <= _negligible(input.values.shape[2:]))


BILINEAR, NEAREST, BICUBIC = 0, 1, 2
MODES = {"bilinear": BILINEAR, "nearest": NEAREST, "bicubic": BICUBIC}


def grid_sample(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``F.grid_sample`` and ``grid_sampler``: where to look must be specified too; zeros outside are.

    Args:
        function: what the user called.
        args: input (N, C, *lengths), grid (N, *results, coordinates), mode, padding mode, align_corners.
        kwargs: the same by name.
    """
    names = "input grid mode padding_mode align_corners"
    if function is not F.grid_sample:
        names = "input grid interpolation_mode padding_mode align_corners"
    given = bound(names, args, kwargs)
    input, grid = given.pop("input"), safe(given.pop("grid"))
    where = (args[1:2] or [kwargs.get("grid")])[0]
    result = function(safe(input), grid, **given)
    known = torch.ones((), dtype=torch.bool, device=result.device).expand(result.shape)
    if isinstance(input, Entries):
        mode = given.get("mode", given.get("interpolation_mode", BILINEAR))
        count = SIGNED["bicubic"] if MODES.get(mode, mode) == BICUBIC else 0
        classes = [(d, count) for d in range(2, input.mask.ndim)] if count else []
        looking = grid.detach()
        weight = missing_weight(
            lambda x: function(x.to(looking.dtype), looking, **given), input.mask, classes
        )
        known = weight <= _negligible(input.values.shape[2:])
    if isinstance(where, Entries):
        known = known & where.mask.all(-1).unsqueeze(1)
    return Entries(result, known)


def affine_grid(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``F.affine_grid``: a coordinate needs its whole row of the transformation."""
    given = bound("theta size align_corners", args, kwargs)
    theta = given.pop("theta")
    result = function(safe(theta), **given)
    rows = theta.mask.all(-1)  # N, coordinates
    between = [1] * (result.ndim - 2)
    return Entries(result, rows.reshape(rows.shape[0], *between, rows.shape[1]).expand(result.shape))


PATTERN = "specified where all neighbours of non-zero weight are"
GRADIENT = "torch's, at the specified entries"

UPSAMPLINGS = """upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d
    upsample_bicubic2d _upsample_bilinear2d_aa"""


def _record(
    name: str, body: Callable[..., Any], functions: tuple[Any, ...], pattern: str = PATTERN
) -> Operation:
    return Operation(name, "interpolation", functions, body, pattern, GRADIENT, filler=0)


OPERATIONS: tuple[Operation, ...] = (
    _record("nn.functional.interpolate", interpolate, (F.interpolate,)),
    *(_record(name, upsample, (getattr(torch._C._nn, name),)) for name in UPSAMPLINGS.split()),
    _record("nn.functional.grid_sample", grid_sample, (F.grid_sample,)),
    _record("grid_sampler", grid_sample, (torch.grid_sampler,)),
    _record("grid_sampler_2d", grid_sample, (torch.grid_sampler_2d,)),
    _record("grid_sampler_3d", grid_sample, (torch.grid_sampler_3d,)),
    _record(
        "nn.functional.affine_grid",
        affine_grid,
        (F.affine_grid, torch.affine_grid_generator),
        "specified where the row of the transformation is",
    ),
)
