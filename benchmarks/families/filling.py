"""Filling the unspecified entries with a number."""

from __future__ import annotations

from collections.abc import Iterator

import torch

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

NAME = "filling"
_FILLED = Formulation(
    ours=lambda x, mask: mg.masked(x, mask).filled(0.0),
    where=lambda x, mask: torch.where(mask, x, 0.0),
    dense=lambda x: x.clone(),
    deleted=lambda left, _: left.clone(),
    dims=(1,),
)


def _cases(point: Point) -> Iterator[Case]:
    for work in (FORWARD, FORWARD_AND_BACKWARD) if point.in_full else (FORWARD,):
        yield _case(point, work)


def _case(point: Point, work: str) -> Case:
    shape = (point.size, point.size)

    def prepare() -> Comparison:
        x, mask = random_values(shape, point.dtype), random_mask(shape, point.density)
        bytes_moved = 2 * x.numel() * x.element_size() + mask.numel() if work == FORWARD else None
        return masked_comparison(_FILLED, x, mask, work, bytes_moved)

    return Case(NAME, "filled(0)", work, shape, point.density, point.dtype, prepare)


FAMILY = Family(
    NAME,
    "a plain tensor with a number where nothing was specified",
    size_is="side of a square matrix",
    cases=_cases,
    sizes=(4096, 512),
    quick_size=256,
    densities=(0.5, 0.1, 0.9),
    dtypes=("float32", "float64", "bfloat16", "float16"),
)
