"""One denominator: accumulated gradients beside a loop that divides."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import maskgrad as mg
from benchmarks.case import OURS, Case, Comparison, Implementation
from benchmarks.masked_comparison import FORWARD_AND_BACKWARD
from benchmarks.plan import Family, Point
from benchmarks.samples import random_values

__all__ = ["FAMILY"]

NAME = "denominators"
COLUMNS = 128
MICRO_BATCHES = 8


def _cases(point: Point) -> Iterator[Case]:
    shape = (point.size, COLUMNS)
    prepare = functools.partial(_accumulated, shape, point)
    name = f"{MICRO_BATCHES} micro-batches"
    yield Case(NAME, name, FORWARD_AND_BACKWARD, shape, point.density, point.dtype, prepare)


def _accumulated(shape: tuple[int, ...], point: Point) -> Comparison:
    """As many losses in each micro-batch, so that the mean of means is the mean, and both give one gradient."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(COLUMNS, 256), nn.GELU(), nn.Linear(256, COLUMNS)).to(
        getattr(torch, point.dtype)
    )
    batches = random_values((MICRO_BATCHES, *shape), point.dtype)
    plain = copy.deepcopy(layers)  # without what the accumulator hangs on parameters
    accumulator = mg.GradientAccumulator(layers)

    def ours() -> Tensor:
        layers.zero_grad()
        for x in batches:
            accumulator.backward(layers(x).square().mean(), count=x.numel())
        accumulator.finish()
        return _gradient(layers)

    def by_hand() -> Tensor:
        plain.zero_grad()
        for x in batches:
            (plain(x).square().mean() / MICRO_BATCHES).backward()
        return _gradient(plain)

    plain(batches.flatten(0, 1)).square().mean().backward()
    truth = _gradient(plain).clone()
    made = {OURS: lambda: Implementation(ours), "by-hand": lambda: Implementation(by_hand)}
    return Comparison(made, functools.partial(torch.testing.assert_close, truth, rtol=1e-4, atol=1e-5))


def _gradient(layers: nn.Module) -> Tensor:
    found = next(layers.parameters()).grad
    assert found is not None
    return found


FAMILY = Family(
    NAME,
    "gradients of micro-batches",
    size_is=f"rows of {COLUMNS} entries",
    cases=_cases,
    sizes=(256, 4096),
    quick_size=64,
    densities=(0.5,),
)
