"""One denominator: metrics of pairs beside deletion by hand, and accumulated gradients beside a loop that divides."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import maskgrad as mg
from benchmarks.case import OURS, Case, Comparison, Implementation
from benchmarks.masked_comparison import FORWARD, FORWARD_AND_BACKWARD
from benchmarks.plan import Family, Point
from benchmarks.samples import random_mask, random_values

__all__ = ["FAMILY"]

NAME = "denominators"
COLUMNS = 128
MICRO_BATCHES = 8


class _SquaredErrors:
    """The mean squared error of all batches, as libraries of metrics compute it."""

    def __init__(self) -> None:
        self.total, self.count = torch.zeros(()), 0

    def update(self, prediction: Tensor, target: Tensor) -> None:
        self.total = self.total + (prediction - target).square().sum()
        self.count += target.numel()

    def compute(self) -> Tensor:
        return self.total / self.count


class _Classes(_SquaredErrors):
    """The share of pairs of classes that agree, from counts for each class."""

    def update(self, prediction: Tensor, target: Tensor) -> None:
        classes = (prediction * 10).long().clamp(0, 9), (target * 10).long().clamp(0, 9)
        table = torch.bincount(classes[0] * 10 + classes[1], minlength=100).view(10, 10)
        self.total = self.total + table.diag().sum()
        self.count += int(table.sum())


METRICS = {"mean squared error": _SquaredErrors, "confusion of ten classes": _Classes}


def _cases(point: Point) -> Iterator[Case]:
    shape = (point.size, COLUMNS)
    for name in METRICS:
        prepare = functools.partial(_metric, name, shape, point)
        yield Case(NAME, name, FORWARD, shape, point.density, point.dtype, prepare)
    if point.in_full:
        prepare = functools.partial(_accumulated, shape, point)
        yield Case(
            NAME,
            f"{MICRO_BATCHES} micro-batches",
            FORWARD_AND_BACKWARD,
            shape,
            point.density,
            point.dtype,
            prepare,
        )


def _metric(name: str, shape: tuple[int, ...], point: Point) -> Comparison:
    x, y = random_values(shape, point.dtype), random_values(shape, point.dtype)
    mask = random_mask(shape, point.density)
    prediction, target = mg.masked(x, mask), mg.masked(y, mask)
    make = METRICS[name]
    aligned = mg.align(prediction, target)
    ways: dict[str, Callable[[Any], Any]] = {
        OURS: lambda metric: metric.update(*mg.align(prediction, target)),
        "indexing": lambda metric: metric.update(x[mask], y[mask]),
        "bare-values": lambda metric: metric.update(*aligned),
    }

    def contender(way: Callable[[Any], Any]) -> Implementation:
        def call() -> Tensor:
            metric = make()
            way(metric)
            return metric.compute()

        return Implementation(call)

    truth = make()
    truth.update(x[mask], y[mask])
    made = {peer: functools.partial(contender, way) for peer, way in ways.items()}
    return Comparison(made, functools.partial(torch.testing.assert_close, truth.compute()))


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
    "metrics of pairs, and gradients of micro-batches",
    size_is=f"rows of {COLUMNS} entries",
    cases=_cases,
    sizes=(256, 4096),
    quick_size=64,
    densities=(0.5,),
)
