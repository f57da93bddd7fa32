"""torch_geometric: pooling and aggregations by deletion, graphs with values and masks as attributes of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric import nn, utils

import maskgrad as mg
from tests.ecosystem.graphs import GRAPHS, INDEX, ROWS, absent_nodes
from tests.ecosystem.truth import garbage


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max", "mul", "any"])
def test_scatter(reduce: str) -> None:
    """Column by column on the rows that are specified there."""
    x, values, mask = garbage(7, 5, density=0.5)
    results = {
        "scatter": utils.scatter(x, INDEX, 0, 4, reduce),
        "columns": utils.scatter(x.T, INDEX, -1, 4, reduce).T,
        "pool": {"sum": nn.global_add_pool, "mean": nn.global_mean_pool, "max": nn.global_max_pool}.get(
            reduce, lambda x, index: utils.scatter(x, index, reduce=reduce)
        )(x, INDEX),
    }
    variance, weights = nn.aggr.VarAggregation()(x, INDEX), utils.softmax(x, INDEX)
    for column in range(5):
        keep = mask[:, column]
        left, index = values[keep, column], INDEX[keep]
        specified = torch.tensor([bool((index == group).any()) or group not in INDEX for group in range(4)])
        truth = torch.where(specified, utils.scatter(left, index, 0, 4, reduce), 0.0)
        for found in results.values():
            assert torch.equal(found.mask[:, column], specified)
            torch.testing.assert_close(found.filled(0.0)[:, column], truth)
        some = variance.mask[:, column]
        truth = nn.aggr.VarAggregation()(left[:, None], index, dim_size=4)[:, 0]
        torch.testing.assert_close(variance.filled(0.0)[some, column], truth[some])
        truth = utils.softmax(left, index, num_nodes=4)
        torch.testing.assert_close(weights.filled(0.0)[keep, column], truth)


@pytest.mark.parametrize(
    ("make", "graphs"),
    [
        (nn.PairNorm, True),
        (lambda: nn.PairNorm(scale_individually=True), True),
        (lambda: nn.DiffGroupNorm(5, 2), False),
        (lambda: nn.HeteroLayerNorm(5, 2), True),
        (lambda: nn.Linear(5, 3), False),
        (lambda: nn.HeteroLinear(5, 3, 2), True),
        (nn.aggr.SoftmaxAggregation, True),
        (nn.aggr.PowerMeanAggregation, True),
        (lambda: nn.aggr.AttentionalAggregation(torch.nn.Linear(5, 1)), True),
        (lambda: nn.aggr.DeepSetsAggregation(torch.nn.Linear(5, 3)), True),
        (lambda: nn.aggr.Set2Set(5, 2), True),
    ],
)
def test_layers_of_absent_nodes(make: Any, graphs: bool) -> None:
    x, values = absent_nodes()
    layer = make()
    found, truth = layer(x, *(GRAPHS,) * graphs), layer(values[ROWS], *(GRAPHS[ROWS],) * graphs)
    if len(found) == len(ROWS):
        assert not found.mask[~ROWS].any()
        found = found[ROWS]
    torch.testing.assert_close(found.filled(torch.nan), truth)


def test_weights_of_edges() -> None:
    """0→1: 1, 1→1: absent, 1→2: 3, 2→2: 4, 2→0: absent; by hand."""
    edges = torch.tensor([[0, 1, 1, 2, 2], [1, 1, 2, 2, 0]])
    weights = mg.masked(
        torch.tensor([1.0, torch.nan, 3.0, 4.0, torch.inf]), torch.tensor([1, 0, 1, 1, 0]) > 0
    )
    own = [1, None, 3, 4, None]
    for fill, loops in (
        ("mean", [None, 1, 3.5]),
        ("add", [None, 1, 7]),
        ("max", [None, 1, 4]),
        (2.0, [2, 2, 2]),
    ):
        assert utils.add_self_loops(edges, weights, fill)[1].tolist() == own + loops
    assert utils.add_remaining_self_loops(edges, weights, 2.0)[1].tolist() == [1, 3, None, 2, None, 4]
    assert utils.get_self_loop_attr(edges, weights).tolist() == [0, None, 4]
    assert utils.remove_self_loops(edges, weights)[1].tolist() == [1, 3, None]
    between = edges[:, [0, 2, 4]]
    laplacian = utils.get_laplacian(between, weights[torch.tensor([0, 2, 4])])[1]
    assert laplacian.tolist() == [-1, -3, None, 1, 3, None]
    assert utils.subgraph([1, 2], edges, weights)[1].tolist() == [None, 3, 4]
    assert [part.tolist() for part in utils.unbatch(weights, torch.tensor([0, 0, 1, 1, 1]))] == [
        own[:2],
        own[2:],
    ]
