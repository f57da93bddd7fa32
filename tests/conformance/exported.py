"""Many programs in one graph, exported once: that is what takes the time. Results are told apart by record."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from maskgrad.semantics.registry import OPERATIONS
from tests.conformance.families import groups_of
from tests.conformance.programs import MASKS, RANDOM_ELSEWHERE, RECORDS, program_of

__all__ = ["Group", "captured", "compared", "groups_without", "made_of"]

#: How many records share a graph.
TOGETHER = 16

Group = tuple[str, ...]
Made = TypeVar("Made")


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


def compared(
    group: Group, run: Callable[[list[Tensor]], Sequence[Tensor]]
) -> Iterator[tuple[str, str, Sequence[Tensor], Sequence[Tensor]]]:
    """On each kind of masks, for each record: name, kind, what was exported gives, and what the program gives."""
    for kind in MASKS:
        results = iter(run(inputs_of(group, kind)))
        for name in group:
            program = program_of(name)
            torch.manual_seed(1)
            wanted = [part.detach() for part in program.function(*program.inputs(kind))]
            yield name, kind, list(itertools.islice(results, len(wanted))), wanted
        assert not list(results)


@functools.lru_cache(maxsize=1)
def captured(group: Group) -> torch.export.ExportedProgram:
    """The graph of a group, traced on the masks that are called "traced"."""
    with torch.no_grad():
        return torch.export.export(Together(group), tuple(inputs_of(group, "traced")), strict=False)


def made_of(group: Group, make: Callable[[Group], Made]) -> Made:
    """``make(group)``; if it fails, of each record alone, so that the traceback names it."""
    try:
        return make(group)
    except Exception:
        for name in group:
            make((name,))
        raise
