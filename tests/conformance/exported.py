"""Many programs in one graph, exported once: that is what takes the time. Results are told apart by record."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskgrad.semantics.registry import OPERATIONS
from tests.conformance.families import groups_of
from tests.conformance.programs import RANDOM_ELSEWHERE, RECORDS, program_of

__all__ = ["Group", "captured", "groups_without"]

#: How many records share a graph.
TOGETHER = 16

Group = tuple[str, ...]


def groups_without(excluded: object, mark: pytest.MarkDecorator) -> list[Any]:
    """All records but the ``excluded`` ones (which are asked with ``in``) and those that draw random numbers."""
    draw = {o.name for o in OPERATIONS if o.family == "random"} | set(RANDOM_ELSEWHERE)
    names = [name for name in RECORDS if name not in excluded and name not in draw]  # type: ignore[operator]
    return groups_of(names, TOGETHER, mark)


class Together(nn.Module):
    """The programs of a group; inputs and results one after the other."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.programs = [program_of(name) for name in group]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        results: list[Tensor] = []
        at = 0
        for program in self.programs:
            width = len(program.tensors) + len(program.data)
            results += program.function(*inputs[at : at + width])
            at += width
        return tuple(results)


def inputs_of(group: Group, kind: str) -> list[Tensor]:
    return [tensor for name in group for tensor in program_of(name).inputs(kind)]


def expected_of(group: Group, kind: str) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """For each record what it gives without any export."""
    for name in group:
        program = program_of(name)
        torch.manual_seed(1)
        yield name, tuple([part.detach() for part in program.function(*program.inputs(kind))])


@functools.lru_cache(maxsize=1)
def captured(group: Group) -> torch.export.ExportedProgram:
    """The graph of a group, traced on the masks that are called "traced"."""
    with torch.no_grad():
        return torch.export.export(Together(group), tuple(inputs_of(group, "traced")), strict=False)


def culprits(group: Group, works: Callable[[Group], object]) -> str:
    """Which records are the reason that the whole group fails, each with its error."""
    found = [f"{name}: {message}" for name in group if (message := error_of(works, (name,)))]
    return "\n".join(found) or "none of them alone"


def error_of(works: Callable[[Group], object], group: Group) -> str:
    try:
        works(group)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""


def shares(
    group: Group, results: Sequence[Tensor], expected: Sequence[tuple[str, tuple[Tensor, ...]]]
) -> list[Sequence[Tensor]]:
    """The results of a graph, record by record."""
    found: list[Sequence[Tensor]] = []
    at = 0
    for _, parts in expected:
        found.append(results[at : at + len(parts)])
        at += len(parts)
    assert at == len(results), f"{group}: {len(results)} results, not {at}"
    return found
