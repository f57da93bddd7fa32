"""torch_geometric: pooling and aggregations by deletion, graphs with values and masks as attributes of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import nn, utils
from torch_geometric.data import Batch, Data

import maskgrad as mg
from maskgrad.errors import UnsupportedOperationError
from tests.ecosystem.graphs import EDGES, GRAPHS, INDEX, ROWS, absent_nodes
from tests.ecosystem.rows import one_line, works
from tests.ecosystem.truth import garbage


def truth_of_scatter(values: Tensor, mask: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """Column by column on the rows that are specified there."""
    result, specified = torch.zeros(4, values.shape[1]), torch.zeros(4, values.shape[1], dtype=torch.bool)
    for column in range(values.shape[1]):
        keep = mask[:, column]
        result[:, column] = utils.scatter(values[keep, column], INDEX[keep], 0, 4, reduce)
        for group in range(4):
            rows = group == INDEX
            specified[group, column] = bool((rows & keep).any()) or not rows.any()
    return result, specified


@works(
    "torch_geometric",
    "`utils.scatter`: sum, mean, min, max, mul; a group without rows is unspecified",
)
@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max", "mul", "any"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scatter(reduce: str, dim: int) -> None:
    x, values, mask = garbage(7, 5, density=0.5)
    result, specified = truth_of_scatter(values, mask, reduce)
    found = utils.scatter(x if dim == 0 else x.T, INDEX, dim, 4, reduce)
    found = found if dim == 0 else found.T
    assert torch.equal(found.mask, specified)
    torch.testing.assert_close(found.filled(0.0), torch.where(specified, result, 0.0))


def test_scatter_asks_for_indices_that_fit() -> None:
    x, _, _ = garbage(7, 5)
    with pytest.raises(ValueError, match="index must have an entry for each"):
        utils.scatter(x, INDEX[:3])
    with pytest.raises(UnsupportedOperationError, match=r"scatter\(src\[keep\], index\[keep\]\)"):
        utils.scatter(x, mg.masked(INDEX, INDEX > 0))


@works(
    "torch_geometric",
    "`global_add_pool`, `global_mean_pool`, `global_max_pool`, aggregations, `utils.softmax`",
)
def test_pooling() -> None:
    x, values, mask = garbage(7, 5)
    for pool, reduce in [
        (nn.global_add_pool, "sum"),
        (nn.global_mean_pool, "mean"),
        (nn.global_max_pool, "max"),
    ]:
        result, specified = truth_of_scatter(values, mask, reduce)
        found = pool(x, INDEX)
        assert torch.equal(found.mask, specified)
        torch.testing.assert_close(found.filled(0.0), torch.where(specified, result, 0.0))
    variance = nn.aggr.VarAggregation()(x, INDEX)
    weights = utils.softmax(x, INDEX)
    for column in range(5):
        keep = mask[:, column]
        truth = nn.aggr.VarAggregation()(values[keep, column, None], INDEX[keep], dim_size=4)[:, 0]
        some = variance.mask[:, column]
        torch.testing.assert_close(variance.filled(0.0)[some, column], truth[some])
        torch.testing.assert_close(
            weights.filled(0.0)[keep, column], utils.softmax(values[keep, column], INDEX[keep], num_nodes=4)
        )


@one_line(
    "torch_geometric",
    "`Data`, `Batch`, `subgraph`",
    "`Data(x=x.filled(0.), x_mask=x.mask)`, and `mg.masked(data.x, data.x_mask)` in the model",
)
def test_graphs_with_two_attributes() -> None:
    x, values, mask = garbage(4, 3)
    data = Data(x=x.filled(0.0), x_mask=x.mask, edge_index=EDGES)
    part = data.subgraph(torch.tensor([1, 3]))
    assert torch.equal(mg.masked(part.x, part.x_mask).filled(0.0), values[[1, 3]])
    assert torch.equal(part.x_mask, mask[[1, 3]])
    batch = Batch.from_data_list([data, part])
    pooled = nn.global_add_pool(mg.masked(batch.x, batch.x_mask), batch.batch)
    torch.testing.assert_close(pooled[1].filled(0.0), values[[1, 3]].sum(0))


@works(
    "torch_geometric",
    "`SoftmaxAggregation`, `PowerMeanAggregation`, `AttentionalAggregation`, `DeepSetsAggregation`, `Set2Set` of "
    "absent nodes",
)
@works(
    "torch_geometric",
    "`PairNorm`, `DiffGroupNorm`, `HeteroLayerNorm`, `Linear`, `HeteroLinear` of missing nodes",
)
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


@works("torch_geometric", "`add_self_loops`, `get_laplacian`, `unbatch`, `subgraph` with masked weights")
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
