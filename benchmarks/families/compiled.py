"""Masked operations under torch.compile: with our operators in the graph, and as formulas that Inductor fuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from benchmarks.case import OURS, Case, Comparison, Implementation
from benchmarks.masked_comparison import (
    FORWARD,
    FORWARD_AND_BACKWARD,
    Formulation,
    Function,
    masked_comparison,
)
from benchmarks.plan import Family, Point
from benchmarks.samples import random_mask, random_values

__all__ = ["FAMILY"]

NAME = "compiled"
#: what torch.compile makes of a graph
BACKEND = "inductor"

#: The operation, and how it is computed on what is left of a slice.
OPERATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Tensor], Tensor]]] = {
    "mean(1)": (lambda x: x.mean(1), lambda left: left.mean()),
    "var(1)": (lambda x: x.var(1), lambda left: left.var()),
    "softmax(1)": (lambda x: x.softmax(1), lambda left: left.softmax(0)),
    "logsumexp(1)": (lambda x: x.logsumexp(1), lambda left: left.logsumexp(0)),
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[-1:]), lambda left: F.layer_norm(left, left.shape)),
    "exp(a) * 2": (lambda x: x.exp() * 2, lambda left: left.exp() * 2),
}
REPRESENTATIVE = "softmax(1)"


def _compiled(function: Function) -> Function:
    result: Function = torch.compile(function, backend=BACKEND, fullgraph=True, dynamic=False)
    return result


def _contest(name: str, x: Tensor, mask: Tensor, work: str) -> Comparison:
    operation, of_the_rest = OPERATIONS[name]
    formulation = Formulation(
        ours=lambda values, kept: operation(mg.masked(values, kept)).filled(0.0),
        where=None,
        dense=operation,
        deleted=lambda left, _: of_the_rest(left),
        dims=(1,),
    )
    # Two functions, because torch.compile keeps what it makes by the code that it was made of.

    def with_operators(values: Tensor, kept: Tensor) -> Any:
        return formulation.ours(values, kept)

    def with_formulas(values: Tensor, kept: Tensor) -> Any:
        return formulation.ours(values, kept)

    def of_dense(values: Tensor, _: Tensor) -> Any:
        return formulation.dense(values)

    torch._dynamo.reset()  # what was compiled for other cases counts towards the limit of recompilations
    ways = {
        OURS: masked_comparison(replace(formulation, ours=_compiled(with_operators)), x, mask, work),
        "maskgrad-formulas": masked_comparison(
            replace(formulation, ours=_compiled(with_formulas)), x, mask, work
        ),
        "maskgrad-eager": masked_comparison(formulation, x, mask, work),
        "dense": masked_comparison(replace(formulation, ours=_compiled(of_dense)), x, mask, work),
    }
    contenders = {way: contest.contenders[OURS] for way, contest in ways.items()}
    contenders["maskgrad-formulas"] = _traced_with_the_reference(contenders["maskgrad-formulas"])
    contenders["dense"] = _yardstick(contenders["dense"])
    return replace(ways["maskgrad-eager"], contenders=contenders)


def _traced_with_the_reference(make: Callable[[], Implementation]) -> Callable[[], Implementation]:
    """A graph keeps the bodies that were chosen when it was traced, in its first call."""

    def made() -> Implementation:
        contender = make()
        with mg.use_kernels("reference"):
            contender.call()
        return contender

    return made


def _yardstick(make: Callable[[], Implementation]) -> Callable[[], Implementation]:
    return lambda: Implementation(make().call, read=None)


def _cases(point: Point) -> Iterator[Case]:
    for name in OPERATIONS if point.in_full else (REPRESENTATIVE,):
        for work in (FORWARD, FORWARD_AND_BACKWARD) if point.in_full else (FORWARD,):
            yield _case(point, name, work)


def _case(point: Point, name: str, work: str) -> Case:
    shape = (point.size, point.size)

    def prepare() -> Comparison:
        x, mask = random_values(shape, point.dtype), random_mask(shape, point.density, (1,))
        return _contest(name, x, mask, work)

    return Case(NAME, name, work, shape, point.density, point.dtype, prepare)


FAMILY = Family(
    NAME,
    "under torch.compile: our operators in the graph, or formulas that Inductor fuses",
    size_is="side of a square matrix",
    cases=_cases,
    sizes=(1024, 256),
    quick_size=256,
    densities=(0.5,),
)
