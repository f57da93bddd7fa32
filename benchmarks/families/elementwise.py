"""Elementwise operations on a MaskedTensor that exists already, and gradients through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from benchmarks.case import OURS, Case, Comparison, Implementation
from benchmarks.masked_comparison import (
    FORWARD,
    FORWARD_AND_BACKWARD,
    Formulation,
    masked_comparison,
)
from benchmarks.plan import Family, Point
from benchmarks.samples import random_mask, random_values

__all__ = ["FAMILY", "OPERATIONS", "UNKNOWN_TO_TORCH_MASKED", "ready_made"]

NAME = "elementwise"
Operation = Callable[[Any], Any]
OPERATIONS: dict[str, Operation] = {
    "a * a": lambda a: a * a,
    "a + a": lambda a: a + a,
    "exp(a)": torch.exp,
    "relu(a)": torch.relu,
}
UNKNOWN_TO_TORCH_MASKED = frozenset(("relu(a)",))


def ready_made(name: str, x: Tensor, mask: Tensor, work: str = FORWARD) -> Comparison:
    """The operation ``name`` on operands made beforehand; backward, on a type made of the leaf within the time."""
    operation = OPERATIONS[name]
    contest = masked_comparison(
        Formulation(
            ours=lambda values, kept: operation(mg.masked(values, kept)),
            where=lambda values, kept: torch.where(kept, operation(values), 0),
            dense=operation,
            deleted=lambda left, _: operation(left),
            dims=(x.ndim - 1,),
        ),
        x,
        mask,
        work,
        2 * x.numel() * x.element_size() + mask.numel() if work == FORWARD else None,
    )
    if work != FORWARD:
        return contest
    contenders = dict(contest.contenders)
    read = contenders[OURS]().read
    ours = mg.masked(x, mask)
    contenders[OURS] = lambda: Implementation(lambda: operation(ours), read)
    if name not in UNKNOWN_TO_TORCH_MASKED:

        def torch_masked() -> Implementation:
            theirs = torch.masked.masked_tensor(x, mask)
            return Implementation(lambda: operation(theirs), read)

        contenders["torch.masked"] = torch_masked
    return replace(contest, contenders=contenders)


def _cases(point: Point) -> Iterator[Case]:
    for name in OPERATIONS if point.in_full else ("a * a",):
        for work in (FORWARD, FORWARD_AND_BACKWARD) if point.in_full else (FORWARD,):
            yield _case(point, name, work)


def _case(point: Point, name: str, work: str) -> Case:
    shape = (point.size, point.size)

    def prepare() -> Comparison:
        return ready_made(name, random_values(shape, point.dtype), random_mask(shape, point.density), work)

    return Case(NAME, name, work, shape, point.density, point.dtype, prepare)


FAMILY = Family(
    NAME,
    "products, sums and functions, entry by entry",
    size_is="side of a square matrix",
    cases=_cases,
    sizes=(4096, 512),
    quick_size=256,
    densities=(0.5, 0.1, 0.9),
    dtypes=("float32", "bfloat16"),
)
