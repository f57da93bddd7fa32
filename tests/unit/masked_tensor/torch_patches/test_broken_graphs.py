"""Where graphs break, operations run in plain Python, and none takes the graph of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nan

import maskgrad as mg
from tests.poison import assert_entries, on

X, Y = [[0.5, 2.0], [3.0, nan]], [[1.5, 1.0], [nan, nan]]
ONES = torch.ones(2, 2)
MASKS = on(1, 1, 1, 0).reshape(2, 2), on(1, 1, 0, 0).reshape(2, 2)

FAMILIES: dict[str, tuple[Callable[..., Any], ...]] = {
    "methods": (
        lambda x, y: x.sub(y),
        lambda x, y: x.add(y),
        lambda x, y: x.mul(y),
        lambda x, y: x.maximum(y),
    ),
    "on the right": (lambda _, y: ONES.sub(y), lambda _, y: ONES.add(y), lambda _, y: torch.eq(ONES, y)),
    "operators": (lambda x, y: x - y, lambda x, y: x * y, lambda x, y: y - x, lambda x, y: x > y),
    "one operand": (lambda x, _: x.sin(), lambda x, _: x.cos(), lambda x, _: -x, lambda x, _: x.exp()),
    "reductions": (
        lambda x, _: x.sum(0),
        lambda x, _: x.prod(0),
        lambda x, _: x.amax(0),
        lambda x, _: x.mean(0),
    ),
    "views": (
        lambda x, _: x.t(),
        lambda x, _: x.flip(0),
        lambda x, _: x.unsqueeze(0),
        lambda x, _: x.cumsum(0),
    ),
    "writes": (lambda x, y: x.sub_(y), lambda x, y: x.mul_(y), lambda x, _: x.neg_(), lambda x, _: x.exp_()),
}


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def operands() -> list[mg.MaskedTensor]:
    return [mg.masked(torch.tensor(data), mask.clone()) for data, mask in zip((X, Y), MASKS, strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_operation_is_itself(family: str) -> None:
    # as a function that Dynamo gives up: what it calls may be compiled
    @torch._dynamo.disable(recursive=False)
    def apply(function: Callable[..., Any]) -> Any:
        return function(*operands())

    for function in FAMILIES[family]:
        expected = function(*operands())
        found = torch.compile(lambda f: [apply(f)], backend="eager")(function)
        assert_entries(found[0], expected.tolist())


def test_after_a_write_that_is_not_compiled() -> None:
    def program(x: mg.MaskedTensor, y: mg.MaskedTensor) -> Any:
        signs = x.sign()
        signs.squeeze()
        signs.sub_(y)
        return torch.eq(x, y)

    assert_entries(torch.compile(program, backend="eager")(*operands()), [[False, False], [None, None]])


def test_a_function_of_ours_is_compiled_by_itself() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    made = torch.compile(mg.from_nan, backend=backend, fullgraph=True)(torch.tensor([1.0, nan]))
    assert_entries(made, [1.0, None])
    assert len(graphs) == 1
