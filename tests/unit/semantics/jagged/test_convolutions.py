"""Convolutions over time in graphs: jagged, where as many results come out as rows go in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import maskgrad as mg

LENGTHS = ([5, 2, 0, 7], [3, 9, 1, 4], [0, 0, 6, 2])


def batch(lengths: list[int], features: int = 4) -> mg.MaskedTensor:
    generator = torch.Generator().manual_seed(sum(lengths))
    padded = torch.randn(len(lengths), max(lengths), features, generator=generator, dtype=torch.float64)
    return mg.from_lengths(padded, torch.tensor(lengths), layout=torch.jagged).transpose(1, 2)


@pytest.mark.compiled
@pytest.mark.parametrize(
    "options", [{"padding": 2}, {"padding": 4, "dilation": 2, "groups": 2}, {"padding": "same"}]
)
def test_a_graph_keeps_the_rows_of_any_lengths(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    layer = mg.nn.Conv1d(4, 6, 5, specified="sequence", dtype=torch.float64, **options)
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> object:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=backend, dynamic=True)
    for lengths in LENGTHS:
        x = batch(lengths)
        found, expected = compiled(x), layer(x)
        assert found.layout == torch.jagged
        assert found.lengths().tolist() == lengths
        torch.testing.assert_close(found.values(), expected.values())
        ours, theirs = (
            torch.autograd.grad(y.values().square().sum(), list(layer.parameters()))
            for y in (found, expected)
        )
        torch.testing.assert_close(ours, theirs)
    assert len(graphs) <= 2


@pytest.mark.compiled
@pytest.mark.parametrize("taps", [1, 5])
def test_a_graph_meets_batches_without_rows(taps: int) -> None:
    layer = mg.nn.Conv1d(4, 6, taps, padding="same", specified="sequence", dtype=torch.float64)
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    for lengths in ([5, 2], [0, 0, 0], [3, 1]):
        padded = torch.randn(len(lengths), 7, 4, dtype=torch.float64)
        x = mg.from_lengths(padded, torch.tensor(lengths), layout=torch.jagged).transpose(1, 2)
        torch.testing.assert_close(compiled(x).values(), layer(x).values())


@pytest.mark.compiled
def test_where_lengths_change_a_graph_is_right() -> None:
    layer = mg.nn.Conv1d(4, 6, 3, stride=2, padding=1, specified="sequence", dtype=torch.float64)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x = batch(LENGTHS[0])
    found, expected = compiled(x), layer(x).to_dense()
    assert torch.equal(found.mask, expected.mask)
    torch.testing.assert_close(found.filled(0.0), expected.filled(0.0))
