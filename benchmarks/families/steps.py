"""Steps of an optimizer whose gradients are all dense, beside each of PyTorch's ways to make the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from benchmarks.case import OURS, Case, Comparison, Implementation
from benchmarks.plan import Family, Point

__all__ = ["FAMILY"]

NAME = "steps"
#: many parameters are small, few are large
LARGE = {8: (2048, 1024)}
RULES: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "Adagrad": {},
    "Adam": {},
    "AdamW": {},
    "RMSprop": {},
    "Adadelta": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "ASGD": {},
    "Rprop": {},
}
FUSED = ("SGD", "Adagrad", "Adam", "AdamW")
WAYS: dict[str, dict[str, Any]] = {
    "torch.optim-fused": {"fused": True},
    "torch.optim-foreach": {"foreach": True},
    "torch.optim-single": {"foreach": False},
}


def _cases(point: Point) -> Iterator[Case]:
    for name in RULES:
        yield _case(name, point.size, LARGE.get(point.size, (64, 64)))


def _case(name: str, number: int, shape: tuple[int, int]) -> Case:
    def prepare() -> Comparison:
        return _contest(name, number, shape)

    return Case(NAME, name, "step", shape, None, "float32", prepare, f"{number} parameters")


def _contest(name: str, number: int, shape: tuple[int, int]) -> Comparison:
    generator = torch.Generator().manual_seed(3)
    start = [torch.randn(shape, generator=generator) for _ in range(number)]
    gradients = [torch.randn(shape, generator=generator) for _ in range(number)]
    theirs, options = getattr(torch.optim, name), {"lr": 0.01, **RULES[name]}
    expected = torch.nn.Parameter(start[-1].double())  # one of them in double precision
    expected.grad = gradients[-1].double()
    theirs([expected], foreach=False, **options).step()

    def contender(make: Callable[..., torch.optim.Optimizer], **way: Any) -> Implementation:
        params = [torch.nn.Parameter(t.clone()) for t in start]
        for param, gradient in zip(params, gradients, strict=True):
            param.grad = gradient
        optimizer = make(params, **options, **way)
        return Implementation(optimizer.step, lambda _: params[-1].detach().clone())

    def verify(found: Tensor) -> None:
        torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-5, atol=1e-5)

    ways = {peer: way for peer, way in WAYS.items() if "fused" not in way or name in FUSED}
    return Comparison(
        {
            OURS: lambda: contender(getattr(mg.optim, name)),
            **{peer: functools.partial(contender, theirs, **way) for peer, way in ways.items()},
        },
        verify,
    )


FAMILY = Family(
    NAME,
    "optimizers of whole models, dense gradients",
    size_is="parameters",
    cases=_cases,
    sizes=(200, *LARGE),
    quick_size=20,
)
