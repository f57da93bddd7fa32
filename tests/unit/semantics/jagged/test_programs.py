"""Each program is what it is on a Boolean mask, and runs on what the table says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.errors import MaskgradError
from maskgrad.masked_tensor.tensor import MaskedTensor
from tests.unit.semantics.jagged.programs import (
    LENGTHS,
    PROGRAMS,
    Program,
    every_part,
    function_of,
    leaves_of,
    on,
    operands,
    padding_seen,
)
from tests.unit.semantics.jagged.table import PAGE, table

ALL = [program for group in PROGRAMS.values() for program in group]
each = pytest.mark.parametrize("program", ALL, ids=lambda program: program.text)


def filled(result: Any) -> list[Tensor]:
    return [part.filled(0) if isinstance(part, MaskedTensor) else part for part in every_part(result)]


def weighted(parts: list[Tensor]) -> Tensor:
    """A number to which each entry contributes what its place says, whatever else there is."""
    total = torch.zeros((), dtype=torch.float64)
    for part in parts:
        weights = torch.ones(())
        for dim, size in enumerate(part.shape):
            line = torch.cos(torch.arange(size) + 1.0 + dim)
            weights = weights.unsqueeze(-1) * line
        total = total + (part * weights).sum() if part.is_floating_point() else total
    return total


def gradients(total: Tensor, leaves: list[Tensor], **options: Any) -> list[Tensor]:
    if not total.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(torch.autograd.grad(total, leaves, materialize_grads=True, **options))


def evaluated(
    run: Callable[..., Any],
    layout: torch.layout,
    given: dict[str, Any],
    leaves: list[Tensor],
    padded: bool | None = None,
) -> tuple[Any, list[Tensor], list[Tensor]]:
    """The result, its gradients, and those of these."""
    operands_ = on(layout, given)
    with padding_seen() as seen:
        result = run(operands_)
    assert padded is None or bool(seen) == padded
    first = gradients(weighted(filled(result)), leaves, create_graph=True)
    second = gradients(sum((weighted([g]) for g in first), torch.zeros(())), leaves)
    return result, first, second


@pytest.mark.every
@each
@pytest.mark.parametrize("kind", LENGTHS)
def test_a_program_is_what_it_is_on_a_mask(program: Program, kind: str) -> None:
    given = operands(kind)
    leaves, run = list(leaves_of(given).values()), function_of(program)
    try:
        expected, *theirs = evaluated(run, torch.strided, given, leaves)
    except (RuntimeError, IndexError, MaskgradError) as refusal:
        with pytest.raises(type(refusal)):
            run(on(torch.jagged, given))
        return
    exceptional = kind == "empty" or (kind == "one" and bool(program.why))  # one matrix for all sequences
    padded = None if exceptional else bool(program.why)
    result, *ours = evaluated(run, torch.jagged, given, leaves, padded)
    for found, part in zip(every_part(result), every_part(expected), strict=True):
        assert type(found) is type(part)
        assert found.dtype == part.dtype
        if isinstance(found, MaskedTensor):
            assert torch.equal(found.mask, part.mask)
    torch.testing.assert_close(filled(result), filled(expected))
    for found, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@each
def test_a_program_in_a_graph(program: Program) -> None:
    given = operands()
    leaves, run = list(leaves_of(given).values()), function_of(program)
    traces: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        traces.extend(node.stack_trace or "" for node in graph.graph.nodes)
        return graph.forward

    torch._dynamo.reset()
    expected = run(on(torch.jagged, given))
    result = torch.compile(run, backend=backend, fullgraph=True)(on(torch.jagged, given))
    padded = any("in _padded" in trace for trace in traces)
    assert padded == bool(program.why or program.in_graph)
    for found, part in zip(every_part(result), every_part(expected), strict=True):
        if isinstance(part, MaskedTensor):
            assert torch.equal(found.mask, part.mask)
            assert program.in_graph or found.layout == part.layout
    torch.testing.assert_close(filled(result), filled(expected))
    found, wanted = (gradients(weighted(filled(r)), leaves) for r in (result, expected))
    torch.testing.assert_close(found, wanted)


def test_the_table_lists_the_programs() -> None:
    assert PAGE.read() == table(), "write it anew with: python -m tests.unit.semantics.jagged.table"


def _shown(statistic: Any) -> Any:
    statistic.mask[0] = False
    return statistic


def _written(statistic: Any) -> Any:
    statistic[0] = mg.unspecified
    return statistic


def _written_through_a_view(statistic: Any) -> Any:
    view = statistic[0]
    view[...] = mg.unspecified
    return statistic


@pytest.mark.parametrize("change", [_shown, _written, _written_through_a_view])
def test_a_statistic_whose_mask_others_can_write_to_is_looked_at_again(change: Any) -> None:
    """Beside its own sequences a statistic needs no mask, until somebody has it."""
    data, lengths = torch.randn(3, 4, 1, dtype=torch.float64), torch.tensor([2, 0, 4])

    def run(x: Any) -> Any:
        return x - change(x.mean(1, keepdim=True))

    x, boolean = (mg.from_lengths(data, lengths, layout=kind) for kind in (torch.jagged, torch.strided))
    expected = run(boolean)
    views = change is _written_through_a_view  # refused in a graph
    for call in (run, *[torch.compile(run, backend="eager", fullgraph=True)] * (not views)):
        found = call(x).to_dense()
        assert torch.equal(found.mask, expected.mask)
        torch.testing.assert_close(found.filled(0.0), expected.filled(0.0))
    others = mg.from_lengths(data, torch.tensor([3, 1, 4]), layout=torch.jagged)  # they keep its mask
    assert not (others - x.mean(1, keepdim=True)).to_dense().mask[1].any()
