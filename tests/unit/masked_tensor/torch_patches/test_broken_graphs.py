"""Where graphs break, operations run in plain Python, and none takes the graph of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nan
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

import maskgrad as mg
from tests.poison import assert_entries, on

ONES = torch.ones(2, 2)
OURS = str(Path(mg.__file__).parent)

#: Operations of one signature, which must not take each other's graph.
FAMILIES: dict[str, tuple[Callable[..., Any], ...]] = {
    "methods": (lambda x, y: x.sub(y), lambda x, y: x.add(y), lambda x, y: x.maximum(y)),
    "on the right": (lambda _, y: ONES.sub(y), lambda _, y: ONES.add(y), lambda _, y: torch.eq(ONES, y)),
    "writes": (lambda x, y: x.sub_(y), lambda x, y: x.mul_(y), lambda x, _: x.neg_()),
}


@pytest.fixture(autouse=True)
def fresh_graphs() -> Iterator[None]:
    torch.compiler.reset()
    clear_compilation_metrics()
    yield
    torch.compiler.reset()


def operands() -> list[mg.MaskedTensor]:
    x, y = torch.tensor([[0.5, 2.0], [3.0, nan]]), torch.tensor([[1.5, 1.0], [nan, nan]])
    return [mg.masked(x, on([1, 1], [1, 0])), mg.masked(y, on([1, 1], [0, 0]))]


def behind_a_broken_graph(function: Callable[[], Any]) -> Any:
    """Call it in a function that Dynamo gives up: what it calls may be compiled."""

    @torch._dynamo.disable(recursive=False)
    def apply() -> Any:
        return function()

    return torch.compile(lambda: [apply()], backend="eager")()[0]


def compiled_of_ours() -> set[tuple[str, str]]:
    """The frames of maskgrad that Dynamo has compiled since the test began; what dataclasses write has no file."""
    found = {(str(metrics.co_filename), str(metrics.co_name)) for metrics in get_compilation_metrics()}
    return {frame for frame in found if frame[0].startswith((OURS, "<string>"))}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_operation_is_itself(family: str) -> None:
    for function in FAMILIES[family]:
        expected = function(*operands())
        found = behind_a_broken_graph(lambda: function(*operands()))  # noqa: B023
        assert_entries(found, expected.tolist())
    assert not compiled_of_ours()
