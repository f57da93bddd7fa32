"""Layers that normalise: over the specified entries of a row, or of a column."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from benchmarks.case import Case, Comparison
from benchmarks.masked_comparison import (
    FORWARD,
    FORWARD_AND_BACKWARD,
    Formulation,
    masked_comparison,
)
from benchmarks.plan import Family, Point
from benchmarks.samples import random_mask, random_values

__all__ = ["FAMILY"]

NAME = "normalization"
EPS = 1e-5


def _standardized(x: Tensor, mask: Tensor, dim: int) -> Tensor:
    """By hand: mean and biased variance of what is specified."""
    count = mask.sum(dim, keepdim=True)
    mean = torch.where(mask, x, 0).sum(dim, keepdim=True) / count
    centered = torch.where(mask, x - mean, 0)
    variance = centered.square().sum(dim, keepdim=True) / count
    return centered * torch.rsqrt(variance + EPS)


def _root_mean_square(x: Tensor, mask: Tensor) -> Tensor:
    filled = torch.where(mask, x, 0)
    mean = filled.square().sum(1, keepdim=True) / mask.sum(1, keepdim=True)
    return filled * torch.rsqrt(mean + EPS)


def _formulations(weight: Tensor, bias: Tensor) -> dict[str, Formulation]:
    """``weight`` and ``bias`` have one entry for each column."""
    size = (len(weight),)

    def layer_norm(x: Any) -> Any:
        return F.layer_norm(x, size, weight, bias, EPS)

    def rms_norm(x: Any) -> Any:
        return F.rms_norm(x, size, weight, EPS)

    def batch_norm(x: Any) -> Any:
        return F.batch_norm(x, None, None, weight, bias, training=True, eps=EPS)

    scale, shift = weight.double(), bias.double()
    of_rows: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "layer_norm": lambda left, mark: F.layer_norm(left, left.shape, scale[mark], shift[mark], EPS),
        "rms_norm": lambda left, mark: F.rms_norm(left, left.shape, scale[mark], EPS),
    }
    return {
        "layer_norm": Formulation(
            ours=lambda x, mask: layer_norm(mg.masked(x, mask)),
            where=lambda x, mask: _standardized(x, mask, 1) * weight + bias,
            dense=layer_norm,
            deleted=of_rows["layer_norm"],
            dims=(1,),
        ),
        "rms_norm": Formulation(
            ours=lambda x, mask: rms_norm(mg.masked(x, mask)),
            where=lambda x, mask: _root_mean_square(x, mask) * weight,
            dense=rms_norm,
            deleted=of_rows["rms_norm"],
            dims=(1,),
        ),
        "batch_norm": Formulation(
            ours=lambda x, mask: batch_norm(mg.masked(x, mask)),
            where=lambda x, mask: _standardized(x, mask, 0) * weight + bias,
            dense=batch_norm,
            # the reference sees columns without their number, so that _case makes weights 1 and biases 0
            deleted=lambda left, _: F.layer_norm(left, left.shape, None, None, EPS),
            dims=(0,),
        ),
    }


def _cases(point: Point) -> Iterator[Case]:
    for name in ("layer_norm", "rms_norm", "batch_norm"):
        for work in (FORWARD, FORWARD_AND_BACKWARD) if point.in_full else (FORWARD,):
            yield _case(point, name, work)


def _case(point: Point, name: str, work: str) -> Case:
    shape = (point.size, point.size)

    def prepare() -> Comparison:
        x, mask = random_values(shape, point.dtype), random_mask(shape, point.density, (0, 1))
        if name == "batch_norm":
            weight, bias = torch.ones(point.size, dtype=x.dtype), torch.zeros(point.size, dtype=x.dtype)
        else:
            weight, bias = (random_values((point.size,), point.dtype, seed) for seed in (2, 3))
        compiles = name == "layer_norm" and point.in_full
        bytes_moved = 2 * x.numel() * x.element_size() + mask.numel() if work == FORWARD else None
        return masked_comparison(
            _formulations(weight, bias)[name], x, mask, work, bytes_moved, with_compiled=compiles
        )

    return Case(NAME, name, work, shape, point.density, point.dtype, prepare)


FAMILY = Family(
    NAME,
    "layer_norm, rms_norm, batch_norm in training",
    size_is="side of a square matrix: samples and features",
    cases=_cases,
    sizes=(4096, 512),
    quick_size=256,
    densities=(0.5, 0.1, 0.9),
    dtypes=("float32", "bfloat16"),
)
