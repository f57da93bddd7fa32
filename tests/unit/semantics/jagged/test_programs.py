"""Each program is what it is for each sequence alone and on a Boolean mask, and runs on what the table says."""

from __future__ import annotations

import itertools
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
    names_of,
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
    found = torch.autograd.grad(total, leaves, allow_unused=True, **options)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)]


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


@pytest.mark.every
@pytest.mark.parametrize("program", [p for p in ALL if not p.meets], ids=lambda program: program.text)
@pytest.mark.filterwarnings("ignore:std")
def test_a_program_is_what_it_is_for_each_sequence_alone(program: Program) -> None:
    given = operands()
    leaves, run = list(leaves_of(given).values()), function_of(program)
    operands_ = on(torch.jagged, given)
    with padding_seen() as seen:
        result = run(operands_)
    assert bool(seen) == bool(program.why)
    totals = []
    for b, n in enumerate(given["lengths"].tolist()):
        if not n and not any(isinstance(r, MaskedTensor) and r.mask[b].any() for r in every_part(result)):
            continue
        own = {name: value[b : b + 1, :n] for name, value in given.items() if name in ("x", "y", "labels")}
        own |= {name: given[name][b : b + 1] for name in ("sequence", "matrices", "query")}
        own["position"] = given["position"][:, :n]
        parts = every_part(run(given | own))
        if not all(part.isfinite().all() for part in parts):  # the deviation of one number
            continue
        for part, whole in zip(parts, every_part(result), strict=True):
            index = (slice(b, b + 1), *[slice(size) for size in part.shape[1:]])
            dense = whole.to_dense()[index] if isinstance(whole, MaskedTensor) else whole[index]
            assert dense.mask.all()
            torch.testing.assert_close(dense.filled(0).to(part.dtype), part)
        totals.append(weighted([torch.cat([torch.zeros(b, *p.shape[1:]), p]) for p in parts]))
    assert totals
    wanted = gradients(sum(totals), leaves)
    torch.testing.assert_close(gradients(weighted(filled(result)), leaves), wanted)


@each
def test_derivatives_of_a_program(program: Program) -> None:
    given = operands()
    names = [name for name in leaves_of(given) if name in names_of(program)]
    run = function_of(program)

    def values(*leaves: Tensor) -> Any:
        found = filled(run(on(torch.jagged, given | dict(zip(names, leaves, strict=True)))))
        return tuple([part for part in found if part.is_floating_point()])

    leaves = [given[name] for name in names]
    if not any(part.requires_grad for part in values(*leaves)):
        return
    with torch.no_grad():  # random directions move all entries, and nothing may be said of NaN
        for leaf in leaves:
            leaf.nan_to_num_(nan=7.0)
    assert torch.autograd.gradcheck(values, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(values, leaves, fast_mode=True)


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


@pytest.mark.parametrize("features", [(), (8,)])
@pytest.mark.parametrize(
    "name", ["softmax", "log_softmax", "amax", "argmax", "logsumexp", "var", "sum", "mean", "norm"]
)
def test_compiled_loops_meet_empty_sequences(name: str, features: tuple[int, ...]) -> None:
    """Sizes at which the loops of a kernel are compiled; an empty sequence lies at both ends, and behind the rows."""
    lengths = torch.tensor([0, *[97, 0, 1, 400] * 30, 0])
    data = torch.randn(len(lengths), 400, *features, dtype=torch.float64, requires_grad=True)
    results = [mg.from_lengths(data, lengths, layout=layout) for layout in (torch.jagged, torch.strided)]
    results = [getattr(x, name)(dim=1) for x in results]
    assert torch.equal(results[0].mask, results[1].mask)
    ours, theirs = (x.filled(0) for x in results)
    torch.testing.assert_close(ours, theirs)
    if ours.is_floating_point():
        found = [torch.autograd.grad((x * x).sum(), data, retain_graph=True)[0] for x in (ours, theirs)]
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_mask_of_a_statistic_that_was_written_since_says_what_it_says_now(compiled: bool) -> None:
    data = torch.randn(3, 4, 2, dtype=torch.float64)
    x, boolean = (
        mg.from_lengths(data, torch.tensor([2, 0, 4]), layout=kind) for kind in (torch.jagged, torch.strided)
    )
    statistic = x.mean(1, keepdim=True)
    y = mg.masked(torch.ones(statistic.shape, dtype=torch.float64), statistic.mask)
    y[0] = mg.unspecified
    less = torch.compile(lambda a, b: a - b, backend="eager", fullgraph=True) if compiled else torch.sub
    found, expected = less(x, y).to_dense(), boolean - y
    assert not found.mask[0].any()
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.filled(0), expected.filled(0))


def _shown(statistic: Any) -> Any:
    statistic.mask[0] = False
    return statistic


def _shown_after_a_result(statistic: Any) -> Any:
    result = statistic * 1
    statistic.mask[0] = False
    return result


def _written_through_a_view(statistic: Any) -> Any:
    view = statistic[0]
    view[...] = mg.unspecified
    return statistic


def _written(statistic: Any) -> Any:
    statistic[0] = mg.unspecified
    return statistic


@pytest.mark.parametrize(
    ("change", "compiled"),
    [
        *itertools.product((_shown, _shown_after_a_result, _written), (False, True)),
        (_written_through_a_view, False),  # refused in a graph
    ],
)
def test_a_statistic_whose_mask_others_can_write_to_is_looked_at_again(change: Any, compiled: bool) -> None:
    """Beside its own sequences a statistic needs no mask, until somebody has it."""
    data, lengths = torch.randn(3, 4, 1, dtype=torch.float64), torch.tensor([2, 0, 4])

    def run(x: Any) -> Any:
        return x - change(x.mean(1, keepdim=True))

    x, boolean = (mg.from_lengths(data, lengths, layout=kind) for kind in (torch.jagged, torch.strided))
    expected = run(boolean)
    found = (torch.compile(run, backend="eager", fullgraph=True) if compiled else run)(x).to_dense()
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.filled(0), expected.filled(0))


def test_a_statistic_of_other_sequences_keeps_its_mask() -> None:
    data = torch.randn(3, 4, 2, dtype=torch.float64)
    few, many = (mg.from_lengths(data, torch.tensor(n), layout=torch.jagged) for n in ([2, 0, 4], [3, 1, 4]))
    found = (many - few.mean(1, keepdim=True)).to_dense()
    assert not found.mask[1].any()
    assert found.mask[0].sum() == 3 * 2
