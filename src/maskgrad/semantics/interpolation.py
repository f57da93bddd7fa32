"""Interpolation: a result is specified where all neighbours of non-zero weight are.

An interpolation works along one dimension after the other. The weights along a dimension are asked of PyTorch's own
function, applied to unit vectors; the mask of a result is the conjunction over the few neighbours that have one.

``mode="area"`` is adaptive average pooling in PyTorch, and here: over the specified entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from maskgrad.semantics.entries import Entries, safe
from maskgrad.semantics.facts import record
from maskgrad.semantics.nonfinite_products import NONE_AT_ALL
from maskgrad.semantics.pooling import adaptive_average, as_tuple, shared
from maskgrad.semantics.signatures import bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


#: How many neighbours each mode looks at along a dimension, if nothing is shrunk.
NEIGHBOURS = {"linear": 2, "bilinear": 2, "trilinear": 2, "bicubic": 4, "lanczos": 6}

#: Modes that copy.
MOVING = ("nearest", "nearest-exact")

#: The length of the dimensions that are left alone while the weights along another are asked for. Images of width 1
#: have the first result everywhere in torch 2.13 with antialias=True.
OTHERS = 2

#: Up to how many units in the last place of a coordinate are rounding errors.
ROUNDINGS = 8


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
    mask = shared(mask, rank)
    if mode in MOVING:
        known = F.interpolate(mask.float(), **given) > NONE_AT_ALL
        return Entries(result, known.expand(result.shape))
    for i in range(rank):
        weights = _weights(given, values.shape[2 + i], result.shape[2 + i], i, rank)
        mask = _all_neighbours(mask, 2 + i, weights, _most_neighbours(given, weights))
    return Entries(result, mask.expand(result.shape))


def _weights(given: dict[str, Any], length: int, results: int, i: int, rank: int) -> Tensor:
    """The weight of each entry in each result along spatial dimension ``i``: (length, results).

    In double precision, whatever the data: there a neighbour without weight is told from one with a small weight.
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


def _most_neighbours(given: dict[str, Any], weights: Tensor) -> int:
    length, results = weights.shape
    count = NEIGHBOURS[given["mode"]]
    if given.get("antialias"):  # a shrunk image is averaged over more of them
        count = count * -(-max(length, results) // results) + 2
    return min(count, length)


def _all_neighbours(mask: Tensor, dim: int, weights: Tensor, count: int) -> Tensor:
    """True where all entries along ``dim`` that have a weight are specified."""
    tolerance = ROUNDINGS * torch.finfo(torch.float64).eps * weights.shape[0]
    has_weight, neighbour = (weights.abs() > tolerance).to(torch.uint8).topk(count, dim=0)
    shape = [-1 if d == dim else 1 for d in range(mask.ndim)]
    result: Tensor | None = None
    for index, needed in zip(neighbour.to(mask.device), has_weight.bool().to(mask.device), strict=True):
        there = mask.index_select(dim, index) | ~needed.reshape(shape)
        result = there if result is None else result & there
    assert result is not None  # every result has a neighbour
    return result


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


OPERATIONS = (
    # The old names call the new one, which is what arrives here.
    record(
        "nn.functional.interpolate upsample upsample_nearest upsample_bilinear",
        "interpolation",
        interpolate,
        PATTERN,
        GRADIENT,
    ),
    record(
        "nn.functional.affine_grid",
        "interpolation",
        affine_grid,
        "specified where the row of the transformation is",
        GRADIENT,
        extra=(torch.affine_grid_generator,),
    ),
)
