"""Softmax and its logarithm along rows and columns."""

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

__all__ = ["FAMILY", "formulation"]

NAME = "softmax"
LOWEST = float("-inf")


def formulation(name: str, dim: int) -> Formulation:
    """How each contender says ``softmax`` or ``log_softmax`` along ``dim``."""
    ours, masked, dense = getattr(mg.functional, name), getattr(torch.masked, name), getattr(torch, name)
    return Formulation(
        ours=lambda x, mask: ours(x, dim, mask=mask),
        masked=lambda x, mask: masked(x, dim, mask=mask),
        where=lambda x, mask: dense(torch.where(mask, x, LOWEST), dim),
        dense=lambda x: dense(x, dim),
        deleted=lambda left, _: dense(left, 0),
        dims=(dim,),
    )


def _cases(point: Point) -> Iterator[Case]:
    for name in ("softmax", "log_softmax") if point.in_full else ("softmax",):
        for dim in (1, 0) if point.in_full else (1,):
            for work in (FORWARD, FORWARD_AND_BACKWARD) if point.in_full else (FORWARD,):
                yield _case(point, name, dim, work)


def _case(point: Point, name: str, dim: int, work: str) -> Case:
    shape = (point.size, point.size)

    def prepare() -> Comparison:
        x, mask = random_values(shape, point.dtype), random_mask(shape, point.density, (dim,))
        compiles = (name, dim, point.dtype) == ("softmax", 1, "float32")
        bytes_moved = 2 * x.numel() * x.element_size() + mask.numel() if work == FORWARD else None
        return masked_comparison(formulation(name, dim), x, mask, work, bytes_moved, with_compiled=compiles)

    return Case(NAME, f"{name}({dim})", work, shape, point.density, point.dtype, prepare)


FAMILY = Family(
    NAME,
    "probabilities of the specified entries",
    size_is="side of a square matrix",
    cases=_cases,
    sizes=(4096, 512),
    quick_size=256,
    densities=(0.5, 0.01, 0.1, 0.9, 1.0),
    dtypes=("float32", "float64", "bfloat16", "float16"),
)
