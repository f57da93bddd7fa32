"""Convolutions over time in graphs: jagged, where as many results come out as rows go in."""

from __future__ import annotations

import pytest
import torch

import maskgrad as mg


@pytest.mark.compiled
@pytest.mark.parametrize("options", [{"padding": 4, "dilation": 2, "groups": 2}, {"padding": "same"}])
def test_a_graph_keeps_the_rows_of_any_lengths(options: dict[str, object]) -> None:
    layer = mg.nn.Conv1d(4, 6, 5, specified="sequence", dtype=torch.float64, **options)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    for lengths in ([5, 2, 0, 7], [3, 9, 1, 4], [0, 0, 0, 0], [0, 0, 6, 2]):
        padded = torch.randn(4, 9, 4, dtype=torch.float64)
        x = mg.from_lengths(padded, torch.tensor(lengths), layout=torch.jagged).transpose(1, 2)
        found, expected = compiled(x), layer(x)
        assert found.layout == torch.jagged
        assert found.lengths().tolist() == lengths
        torch.testing.assert_close(found.values(), expected.values())
        weights = list(layer.parameters())
        gradients = [torch.autograd.grad(y.values().square().sum(), weights) for y in (found, expected)]
        torch.testing.assert_close(*gradients)
